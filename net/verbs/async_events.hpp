// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/calls.hpp>
#include <weft/net/verbs/descriptor_watch.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

// The asynchronous events of a device: ibv_get_async_event(3).
namespace weft::net::verbs {

/// Receives asynchronous events.
class async_handler {
 public:
  /// Handles an event, on the handler's executor. `port` is valid for IBV_EVENT_PORT_* only.
  virtual void on_async_event(ibv_event_type what, int port) noexcept = 0;

 protected:
  ~async_handler() = default;
};

/// Delivers events to a handler from whichever thread takes them. It is the context of the handler's queue pair,
/// completion queue or shared receive queue (ibv_qp::qp_context, and so on). It must live until that object is
/// destroyed, which waits for events that were taken and not acknowledged, or else until async_audience::forget(). A
/// target that has joined an audience must live until async_audience::leave().
class async_target final : public std::enable_shared_from_this<async_target> {
 public:
  async_target(executor_core& home, async_handler& handler) noexcept : home_(home), handler_(&handler) {}

  /// Passes an event on to the handler's executor; drops it if memory is short. From any thread, while the handler's
  /// object at the device exists.
  void tell(ibv_event_type what, int port) noexcept;
  /// Stops the delivery to the handler. Called on its executor.
  void end() noexcept { handler_ = nullptr; }

 private:
  executor_core& home_;
  async_handler* handler_;
};

/// Routes events: those about the whole device to its users on every executor, those about one object to its owner.
/// Thread-safe.
class async_audience {
 public:
  void join(async_target& who);
  void leave(async_target& who) noexcept;
  /// Takes the next event with ibv_get_async_event(3), and records a port's state. Returns 0 or -errno. Serialized,
  /// because otherwise two executors could record the events of a port in the wrong order.
  [[nodiscard]] int take(rdma_calls& library, ibv_context* context, ibv_async_event& found) noexcept;
  void tell(ibv_event_type what, int port) noexcept;
  /// Passes an event on to the owner of an object at the device. `context` is the object's: an async_target, or null.
  void tell_owner(void* const& context, ibv_event_type what) noexcept;
  /// Drops further events about an object that could not be destroyed, as when the kernel has removed the device: the
  /// library keeps the object, and events about it may still be queued.
  void forget(void*& context) noexcept;
  /// Whether the last event about the port was that it went down. Connections survive a port that comes back soon: the
  /// device's retries decide.
  [[nodiscard]] bool is_down(int port) const noexcept {
    return (ports_down_.load(std::memory_order_relaxed) & bit_of(port)) != 0;
  }

 private:
  [[nodiscard]] static std::uint64_t bit_of(int port) noexcept { return std::uint64_t{1} << (port & 63); }

  std::mutex mutex_;
  std::vector<async_target*> members_;
  std::atomic<std::uint64_t> ports_down_{0};
};

/// Watches a device's events on one executor. Whichever executor sees an event first passes it on through the audience.
class async_events final : public descriptor_watch {
 public:
  /// The context's descriptor must be non-blocking.
  async_events(rdma_calls& library, ibv_context* context, async_audience& audience)
      : descriptor_watch(context->async_fd), calls_(library), context_(context), audience_(audience) {}

 private:
  bool on_readable() noexcept override;
  void pass_on(const ibv_async_event& event) noexcept;

  rdma_calls& calls_;
  ibv_context* context_;
  async_audience& audience_;
};

}  // namespace weft::net::verbs

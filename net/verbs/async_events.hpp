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

// What a device reports outside of any call: ibv_get_async_event(3).
namespace weft::net::verbs {

/// Whom such an event concerns.
class async_handler {
 public:
  /// On its executor. `port` means something in IBV_EVENT_PORT_* only.
  virtual void on_async_event(ibv_event_type what, int port) noexcept = 0;

 protected:
  ~async_handler() = default;
};

/// The way to a handler from whatever thread takes the event. It is the context of the handler's queue pair, completion
/// queue or shared receive queue (qp_context of ibv_qp, and so on), and there until that has been destroyed, which
/// waits for events that were taken and not acknowledged, or forgotten.
class async_target final : public std::enable_shared_from_this<async_target> {
 public:
  async_target(executor_core& home, async_handler& handler) noexcept : home_(home), handler_(&handler) {}

  /// From any thread, while the handler's object at the device is there.
  void tell(ibv_event_type what, int port) noexcept;
  /// On the handler's executor: it hears nothing more.
  void end() noexcept { handler_ = nullptr; }

 private:
  executor_core& home_;
  async_handler* handler_;
};

/// Who hears of what: of the whole device, its users on every executor; of one object, its owner. Thread-safe.
class async_audience {
 public:
  void join(async_target& who);
  void leave(async_target& who) noexcept;
  /// Asks for the next event, as ibv_get_async_event(3), and keeps what it says of a port. One at a time: of two
  /// executors, the second could otherwise be the first to say whether a port is down, and the older news would stay.
  [[nodiscard]] int take(rdma_calls& library, ibv_context* context, ibv_async_event& found) noexcept;
  void tell(ibv_event_type what, int port) noexcept;
  /// Whoever an object's context leads to: an async_target, or null.
  void tell_owner(void* const& context, ibv_event_type what) noexcept;
  /// For an object that cannot be destroyed, as when the kernel has taken the device away: the library keeps it, and
  /// events about it may be waiting still. From now on nobody hears of them.
  void forget(void*& context) noexcept;
  /// As far as has been heard. One whose cable comes back soon harms no connection: retries decide about that.
  [[nodiscard]] bool is_down(int port) const noexcept {
    return (ports_down_.load(std::memory_order_relaxed) & bit_of(port)) != 0;
  }

 private:
  [[nodiscard]] static std::uint64_t bit_of(int port) noexcept { return std::uint64_t{1} << (port & 63); }

  std::mutex mutex_;
  std::vector<async_target*> members_;
  std::atomic<std::uint64_t> ports_down_{0};
};

/// One executor's look at a device's events: whichever executor sees one first hands it to whom it concerns.
class async_events final : public descriptor_watch {
 public:
  /// The context's descriptor does not block.
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

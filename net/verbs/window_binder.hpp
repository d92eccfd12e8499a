// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/send_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sync/event.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weft::net::verbs {

/// How long posted requests may take to end by themselves after the peer has left, and again after the queue pair has
/// moved to ERR. Then the queue pair is destroyed, which ends them in any case. A stopped expose() waits as long for
/// its bind.
inline constexpr auto linger_time = std::chrono::milliseconds(1000);

/// Exposes memory to a link's peer, through windows that requests of the link bind and invalidate.
class window_binder {
 public:
  /// The link.
  class owner {
   public:
    /// Whether the link holds its requests back until the peer's first message.
    [[nodiscard]] virtual bool listens() const noexcept = 0;
    /// Rings the doorbell now.
    virtual void ring_now() noexcept = 0;
    virtual void fail(const error& why) noexcept = 0;
    /// Takes the next steps of closing, because a request has ended without a completion.
    virtual void advance_end() noexcept = 0;

   protected:
    ~owner() = default;
  };

  window_binder(executor_core& home, endpoint& of, const domain& memory, const link_life& life, send_queue& requests,
                owner& link) noexcept;
  window_binder(const window_binder&) = delete;
  window_binder& operator=(const window_binder&) = delete;

  // As in link. Call them before the endpoint is destroyed.
  task<exposed_place> expose(mr::slice memory, mr::usage uses);
  void revoke(std::uint64_t key, revocation& who) noexcept;

  /// Whether an invalidation waits until the completions that are there have been polled. The link must not hand
  /// requests over meanwhile.
  [[nodiscard]] bool looks_first() const noexcept { return looks_first_; }
  /// Continues the invalidations that have waited, because the completions have been polled.
  void drained() noexcept;

  [[nodiscard]] const ibv_send_wr& request(std::uint32_t mark) const noexcept {
    return bindings_[mark - first_bind_mark].wr;
  }
  void request_ended(std::uint32_t mark, bool done) noexcept { binding_ended(bindings_[mark - first_bind_mark], done); }
  /// Makes coroutines that wait for a free request, or for the peer's first message, check again.
  void wake_waiting() noexcept { binding_free_.set(); }

  /// Has the windows that were to be invalidated deallocated instead, because the queue pair is about to be destroyed.
  void give_up_invalidating() noexcept;
  /// Whether coroutines of expose() refer to the link.
  [[nodiscard]] bool is_exposing() const noexcept { return exposing_ != 0; }
  /// Ends the coroutines of expose() that wait for a bind. Yields a wait that ends when is_exposing() may have changed.
  event::wait_operation next_exposed() noexcept;

 private:
  // The place of a request that binds or invalidates a window. A coroutine of expose() waits for a bind; request and
  // coroutine may end in either order. An invalidation notifies `who`.
  struct binding {
    ibv_send_wr wr{};
    bound_window* invalidated = nullptr;
    revocation* who = nullptr;
    bool looks_first = false;  // waits for drained(): the peer may have invalidated the window already
    event ended;
    bool posted = false;
    bool awaited = false;
    bool done = false;
  };
  class binding_wait;
  class unfinished_window;

  void check_windows() const;
  task<exposed_place> bind(mr::slice memory, mr::usage uses);
  task<> make_window(bound_window& window, std::span<std::byte> memory, mr::access rights);
  task<std::uint32_t> bind(bound_window& made, ibv_mw_bind_info what);
  task<> wait_for(binding& item);
  [[nodiscard]] binding* free_binding() noexcept;
  [[nodiscard]] std::uint16_t mark_of(const binding& item) const noexcept {
    return static_cast<std::uint16_t>(first_bind_mark + (&item - bindings_.data()));
  }
  void post_binding(binding& item) noexcept;
  void withdraw(binding& item) noexcept;
  void binding_ended(binding& item, bool done) noexcept;
  [[nodiscard]] bool can_invalidate(const bound_window& item) const noexcept;
  void begin_invalidating(bound_window& item, binding& place, revocation& who) noexcept;
  void invalidate(binding& item) noexcept;
  void invalidation_ended(binding& item, bool done) noexcept;

  executor_core& home_;
  endpoint& endpoint_;
  const domain& domain_;
  const link_life& life_;
  send_queue& requests_;
  owner& owner_;
  std::array<binding, bind_requests> bindings_;
  event binding_free_;
  bool looks_first_ = false;  // an invalidation waits for drained()
  std::size_t exposing_ = 0;  // coroutines of expose() that refer to this object
  event exposed_;
};

}  // namespace weft::net::verbs

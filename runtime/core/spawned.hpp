// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/root_task.hpp>

#include <utility>

namespace weft {

namespace detail {

template <class T>
class spawned_wait final : public root_waiter {
 public:
  explicit spawned_wait(root_of<T>& root) noexcept : root_waiter(root), root_(root) {}
  T await_resume() {
    check_ended();
    return root_.take();
  }

 private:
  root_of<T>& root_;
};

}  // namespace detail

/// The handle of a task that scope::spawn() has started: `co_await` it for what the task yields or throws, or drop it.
///
///     auto answer = children.spawn(ask(peer));
///     co_await tell(other);
///     use(co_await answer);
///
/// An lvalue of it is awaited in its place by when_any() and its like, so that one may wait again.
///
/// It is awaited on the scope's executor (errc::wrong_thread), by one task at a time (errc::busy), which keeps it
/// meanwhile, and yields the result once. A
/// stop of whoever waits ends the wait with errc::canceled and does nothing to the task, for which one may wait again.
/// It may outlive its scope, and then yields what the task has ended with. A result that was taken before, and a handle
/// that is empty, are errc::invalid_argument. Allocates nothing.
template <class T = void>
class spawned {
 public:
  spawned() noexcept = default;

  /// False if it is empty: made so, or moved from.
  explicit operator bool() const noexcept { return static_cast<bool>(root_); }
  /// Whether the task has ended, so that waiting for it takes no time.
  [[nodiscard]] bool ended() const { return root().ended(); }
  /// The result of a task that has ended, without waiting; as often as co_await, which is once.
  T take() { return root().take(); }
  /// Asks this task alone to stop; the others of its scope go on. It ends when it obeys, and its scope takes an
  /// errc::canceled with which it does for no failure; whoever awaits the handle gets it. Nothing once it has ended.
  /// errc::wrong_thread elsewhere than on its executor.
  void request_stop() const { root().request_stop(); }

  /// Waits for the task's end, and yields its result or throws its failure.
  [[nodiscard]] detail::spawned_wait<T> operator co_await() const { return detail::spawned_wait<T>(root()); }

 private:
  friend class scope;
  explicit spawned(detail::root_handle<T> root) noexcept : root_(std::move(root)) {}

  [[nodiscard]] detail::root_of<T>& root() const {
    if (!root_) [[unlikely]]
      detail::throw_misuse(errc::invalid_argument, "use an empty handle of a spawned task");
    return *root_;
  }

  detail::root_handle<T> root_;
};

}  // namespace weft

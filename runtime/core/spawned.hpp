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

/// The handle of a task that scope::spawn() has started: `co_await` it for the task's value or failure, or drop it.
///
///     auto answer = children.spawn(ask(peer));
///     co_await tell(other);
///     use(co_await answer);
///
/// when_any() and its like await an lvalue of this type in place, so the handle can be awaited again.
///
/// Await the handle on the scope's executor, in one task at a time. While the task runs, a violation is
/// errc::wrong_thread or errc::busy; after its end, use on another thread goes unnoticed. Destroying the handle while a
/// task waits for it ends the program. The handle yields the result once. A stop of the waiting task ends the wait with
/// errc::canceled and does not affect the awaited task, which may be awaited again. The handle may outlive its scope,
/// and then yields the result all the same. Taking a result again, or using an empty handle, is errc::invalid_argument.
/// Awaiting allocates nothing.
template <class T = void>
class spawned {
 public:
  spawned() noexcept = default;

  /// False if the handle is empty: default-constructed, or moved from.
  explicit operator bool() const noexcept { return static_cast<bool>(root_); }
  /// Whether the task has ended, so waiting for it does not suspend.
  [[nodiscard]] bool ended() const { return root().ended(); }
  /// Returns the result of a task that has ended, or throws its failure, without waiting; errc::invalid_argument before
  /// the end. Either take() or co_await yields the result, once.
  T take() { return root().take(); }
  /// Asks this task alone to stop; the others of its scope go on. If it then ends with errc::canceled, its scope does
  /// not count that as a failure, but a task that awaits the handle gets it. Does nothing once the task has ended.
  /// errc::wrong_thread unless the task's executor makes the call.
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

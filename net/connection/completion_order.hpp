// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>

namespace weft::net {

/// Whether an operation has ended at once, inside the call that began it.
enum class taken : std::uint8_t {
  no,       ///< it has not begun
  ended,    ///< it has ended, and its task goes on without suspending
  in_turn,  ///< it has ended, and its task is suspended until its turn
};

/// Lets tasks go on in the order in which their operations have completed, including operations that end at once.
class completion_order {
 public:
  /// For the tasks of `home`.
  explicit completion_order(executor_core& home) noexcept : home_(home) {}

  /// Notes that an operation has completed, and that the task which waits for it, if any, has just become ready.
  void note() noexcept { last_ = home_.readied(); }
  /// Decides whether the running task, whose operation has ended at once, goes on without suspending. Otherwise makes
  /// the task ready behind all tasks that are ready. Never taken::no.
  [[nodiscard]] taken go_on(weft::detail::promise_base& waiter) noexcept {
    if (home_.has_resumed(last_) && home_.may_go_on()) [[likely]]
      return taken::ended;
    return wait_for_turn(waiter);
  }

 private:
  [[nodiscard]] taken wait_for_turn(weft::detail::promise_base& waiter) noexcept;

  executor_core& home_;
  std::uint64_t last_ = 0;  // executor_core::readied() when an operation last completed
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>

namespace weft::net {

/// Whether an operation has ended where it began.
enum class taken : std::uint8_t {
  no,       ///< it has not begun
  ended,    ///< it has, and its task goes on
  in_turn,  ///< it has, and its task goes on once it is its turn
};

/// Lets tasks go on in the order in which their operations have completed, also those whose operations end where they
/// begin.
class completion_order {
 public:
  /// Of the tasks of `home`.
  explicit completion_order(executor_core& home) noexcept : home_(home) {}

  /// The task of a completed operation has become ready.
  void note() noexcept { last_ = home_.readied(); }
  /// The operation of the running task has ended where it began: never taken::no.
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

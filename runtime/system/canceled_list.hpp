// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/event_driver.hpp>

namespace weft {

/// Operations that the kernel was asked to cancel and has not completed, oldest first.
class canceled_list {
 public:
  [[nodiscard]] io_operation* first() const noexcept { return first_; }
  [[nodiscard]] static io_operation* behind(const io_operation& operation) noexcept { return operation.next_done_; }
  /// For an operation that is in no done_list.
  [[nodiscard]] static bool contains(const io_operation& operation) noexcept { return operation.listed_; }

  /// Adds an operation, unless it is here, or in the done_list.
  void push(io_operation& operation) noexcept {
    if (operation.listed_) return;
    operation.listed_ = true;
    operation.next_done_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_done_) = &operation;
    last_ = &operation;
  }

  /// Removes an operation that is here.
  void remove(io_operation& operation) noexcept {
    io_operation* before = nullptr;
    for (io_operation* each = first_; each != &operation; each = each->next_done_) before = each;
    (before == nullptr ? first_ : before->next_done_) = operation.next_done_;
    if (last_ == &operation) last_ = before;
    operation.listed_ = false;
  }

 private:
  io_operation* first_ = nullptr;
  io_operation* last_ = nullptr;
};

}  // namespace weft

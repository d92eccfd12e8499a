// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/event_driver.hpp>

namespace weft {

/// Operations that have ended, oldest first, and whose complete() the driver calls in a coming turn, because it never
/// calls complete() inside start() or cancel().
class done_list {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  void push(io_operation& operation, int result) noexcept {
    operation.result_ = result;
    operation.listed_ = true;
    operation.next_done_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_done_) = &operation;
    last_ = &operation;
  }

  io_operation& pop(int& result) noexcept {
    io_operation& operation = *first_;
    first_ = operation.next_done_;
    operation.listed_ = false;
    result = operation.result_;
    return operation;
  }

 private:
  io_operation* first_ = nullptr;
  io_operation* last_ = nullptr;
};

}  // namespace weft

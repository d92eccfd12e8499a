// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/task_name.hpp>

namespace weft {

namespace detail {

operation_base* promise_base::stoppable() const noexcept {
  const promise_base* innermost = this;
  while (innermost->child_ != nullptr && innermost->child_->stop_.source_ == stop_.source_) {
    innermost = innermost->child_;
  }
  return innermost->child_ == nullptr ? innermost->operation_ : nullptr;
}

void throw_empty_task() {
  throw error(errc::invalid_argument, "use a task that is empty: it was awaited or spawned before, or moved from");
}

void throw_no_value(std::source_location origin) {
  throw error(errc::invalid_argument, "await a task that ended without a value: " + name_and_place(origin) +
                                          " reaches its end without co_return");
}

}  // namespace detail

}  // namespace weft

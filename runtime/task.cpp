// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/task_name.hpp>

namespace weft {

// The chain is out of the list before the operation ends, because that may destroy it, or others.
void stop_source::stop_first_chain() noexcept {
  auto& first = static_cast<detail::promise_base&>(*chains_);
  first.leave();
  if (detail::operation_base* const waited = first.stoppable()) waited->stop();
}

// Tasks may outlive the source of their token as long as they do not wait.
[[gnu::cold]] void stop_source::let_chains_go() noexcept {
  while (chains_ != nullptr) {
    auto& first = static_cast<detail::promise_base&>(*chains_);
    first.leave();
    if (first.stoppable() != nullptr)
      detail::terminate_because("a stop_source was destroyed while an operation still listens to it");
  }
}

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

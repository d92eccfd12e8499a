// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>

namespace weft::detail {

class promise_base;

/// What a task is called in dumps, traces and reports.
struct task_names {
  const char* task = nullptr;  // null: spawn() was given none
  const char* scope = "";
  std::source_location origin{};
};
/// The names of the task that this coroutine is a part of, with the coroutine's own place as `origin`. A task that is
/// very far up the chain of awaits is not looked for: then the place is all there is. What the names point to stays.
[[nodiscard]] task_names names_of(const promise_base& item) noexcept;

}  // namespace weft::detail

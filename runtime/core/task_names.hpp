// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>

namespace weft::detail {

class promise_base;

/// The names of a task in dumps, traces and reports.
struct task_names {
  const char* task = nullptr;  // a string literal; null if the task was given no name
  const char* scope = "";
  std::source_location origin{};
};
/// The names of the task that this coroutine is a part of, with the coroutine's own place as `origin`. If the task is
/// more than 64 coroutines up the chain of awaits, only `origin` is set. The strings outlive the task.
[[nodiscard]] task_names names_of(const promise_base& item) noexcept;

}  // namespace weft::detail

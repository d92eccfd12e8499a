// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <source_location>

namespace weft {

class executor_core;

namespace detail {

class promise_base;
class root_task;
struct task_names;

/// The owner of root tasks, which is notified when they end: a scope, run(), the background of an executor.
class root_observer {
 protected:
  ~root_observer() = default;

 private:
  friend class root_task;
  friend class weft::executor_core;
  friend task_names names_of(const promise_base& item) noexcept;

  /// Called on the executor's thread once a task has ended, and its frame is gone.
  virtual void ended() noexcept = 0;
  /// Called instead of ended() if the task has failed. A task that ends with errc::canceled after its own
  /// request_stop() has not failed. `task` is the task's name, or null; `origin`, its place in the source.
  virtual void failed(std::exception_ptr failure, const char* task, std::source_location origin) noexcept = 0;

  /// For dumps and reports: the coroutine whose scope this is, or null, and the scope's name.
  [[nodiscard]] virtual const promise_base* owner() const noexcept { return nullptr; }
  [[nodiscard]] virtual const char* name() const noexcept { return ""; }
};

}  // namespace detail

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/attachment.hpp>

#include <unistd.h>

#include <mutex>

namespace weft {

class executor_core;

namespace detail {

/// The entry of a live executor in the list of this process: for dumps of all executors, and for debuggers, which find
/// the list in a core dump. Intrusive. In a child of fork(2) the list has the parent's executors as well.
class listed_executor final : public attachment {
 public:
  /// Adds an executor to the list. Throws std::bad_alloc.
  explicit listed_executor(executor_core& who);
  ~listed_executor() override;
  listed_executor(const listed_executor&) = delete;
  listed_executor& operator=(const listed_executor&) = delete;

  /// The key for executor_core::attach().
  static constexpr char key = 0;

  /// Calls `function(executor)` for each executor made in this process; none of them is destroyed meanwhile. The
  /// function must not make or destroy an executor, because the list is locked.
  template <class Function>
  static void for_each(Function function) {
    const pid_t process = ::getpid();
    const std::lock_guard lock(mutex_);
    for (const listed_executor* each = first_; each != nullptr; each = each->next_) {
      if (each->process_ == process) function(each->who_);
    }
  }

 private:
  friend struct debugger_layout;

  static std::mutex mutex_;
  static listed_executor* first_;

  executor_core& who_;
  const pid_t process_;
  listed_executor* next_ = nullptr;
  listed_executor** previous_ = nullptr;
};

}  // namespace detail

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <atomic>
#include <cstdint>

namespace weft::detail {

/// Remembers the thread that last used an object that is meant for one thread, so that check() can refuse a use on
/// another thread before it corrupts the object. All functions may be called from any thread.
class shared_on_one_thread {
 public:
  /// Notes that this thread uses the object from now on.
  void enter() noexcept { thread_.store(this_thread_number(), std::memory_order_relaxed); }
  /// Calls check(), then enter().
  void enter(bool in_use, const char* what) {
    check(in_use, what);
    enter();
  }
  /// Throws errc::wrong_thread if `in_use` is true and the last call of enter() was on another thread.
  void check(bool in_use, const char* what) const {
    const std::uint64_t user = in_use ? thread_.load(std::memory_order_relaxed) : 0;
    if (user != 0 && user != this_thread_number()) [[unlikely]]
      throw_misuse(errc::wrong_thread, what);
  }

 private:
  std::atomic<std::uint64_t> thread_{0};  // the number of the last thread that called enter(); 0 before the first call
};

}  // namespace weft::detail

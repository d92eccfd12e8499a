// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <atomic>
#include <cstdint>

namespace weft::detail {

/// The thread whose tasks use something that is not made for several: whoever comes from another one is told so instead
/// of corrupting it. From any thread.
class shared_on_one_thread {
 public:
  /// This thread uses it from now on.
  void enter() noexcept { thread_.store(this_thread_number(), std::memory_order_relaxed); }
  /// Likewise; errc::wrong_thread if it is `in_use` on another one.
  void enter(bool in_use, const char* what) {
    check(in_use, what);
    enter();
  }
  /// errc::wrong_thread if it is `in_use` on another thread.
  void check(bool in_use, const char* what) const {
    const std::uint64_t user = in_use ? thread_.load(std::memory_order_relaxed) : 0;
    if (user != 0 && user != this_thread_number()) [[unlikely]]
      throw_misuse(errc::wrong_thread, what);
  }

 private:
  std::atomic<std::uint64_t> thread_{0};  // of the last who came; 0: nobody has
};

}  // namespace weft::detail

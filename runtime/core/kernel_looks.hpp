// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::detail {

/// Decides when an executor with other work asks the kernel for news, because a system call in every turn would cost
/// more than most turns do.
class kernel_looks {
 public:
  /// Whether to ask now. Call it once in a turn, or in a look of a spin. `resumed`: how many coroutines have been
  /// resumed so far.
  [[nodiscard]] bool is_due(std::uint64_t resumed) noexcept {
    if (++turns_without_ < turns_per_look && resumed < due_at_resumed_) return false;
    note(resumed);
    ++count_;
    return true;
  }
  /// Notes that the kernel is asked now.
  void note(std::uint64_t resumed) noexcept {
    turns_without_ = 0;
    due_at_resumed_ = resumed + resumptions_per_look;
  }
  /// Whether to read the clock at this look, too: an executor that never sleeps does not read it otherwise, unless a
  /// timer is armed.
  [[nodiscard]] bool is_for_the_clock() const noexcept { return count_ % looks_per_clock_look == 0; }

 private:
  static constexpr unsigned turns_per_look = 8;
  static constexpr std::uint64_t resumptions_per_look = 64;
  static constexpr unsigned looks_per_clock_look = 8;

  unsigned turns_without_ = 0;
  unsigned count_ = 0;  // how often is_due() was true
  std::uint64_t due_at_resumed_ = 0;
};

}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/event_driver.hpp>

#include <array>
#include <cstddef>

namespace weft {

/// The operations that a spinning driver tries itself, oldest first. They are few, because each costs a system call a
/// round; for many, the kernel's notifications are cheaper.
class parked_operations {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

  /// Adds an operation. Returns the oldest, if that had to be removed to make room, else null.
  [[nodiscard]] io_operation* push(io_operation& operation) noexcept {
    io_operation* const evicted = count_ == all_.size() ? &pop() : nullptr;
    all_[count_++] = &operation;
    return evicted;
  }

  /// Removes and returns the oldest operation; only if there is one.
  io_operation& pop() noexcept {
    io_operation& oldest = *all_[0];
    remove_at(0);
    return oldest;
  }

  /// Removes an operation; false if it is not here.
  bool remove(const io_operation& operation) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (all_[i] != &operation) continue;
      remove_at(i);
      return true;
    }
    return false;
  }

 private:
  void remove_at(std::size_t place) noexcept {
    --count_;
    for (std::size_t i = place; i < count_; ++i) all_[i] = all_[i + 1];
  }

  std::array<io_operation*, 4> all_{};
  std::size_t count_ = 0;
};

}  // namespace weft

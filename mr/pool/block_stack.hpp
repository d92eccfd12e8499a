// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::mr::detail {

struct block;

/// Free blocks of one size that an executor keeps at hand, last in, first out. Only the thread that runs its user takes
/// and gives; others make that executor its user or stop it, and read how much it holds.
class block_stack {
 public:
  /// Nobody's, and without room.
  constexpr block_stack() noexcept : user_(this) {}
  block_stack(const block_stack&) = delete;
  block_stack& operator=(const block_stack&) = delete;

  /// Null if there is none, or if it is not that executor's: null is nobody.
  [[nodiscard]] block* take(const void* user) noexcept {
    block** const top = top_.load(std::memory_order_relaxed);
    if (user_.load(std::memory_order_relaxed) != user) return nullptr;
    block* const item = top[-1];  // null below the lowest
    if (item != nullptr) top_.store(top - 1, std::memory_order_relaxed);
    return item;
  }
  /// False if it has no room, or is not that executor's.
  [[nodiscard]] bool give(block& item, const void* user) noexcept {
    block** const top = top_.load(std::memory_order_relaxed);
    if (user_.load(std::memory_order_relaxed) != user || top == end_) [[unlikely]]
      return false;
    *top = &item;
    top_.store(top + 1, std::memory_order_relaxed);
    return true;
  }

 private:
  friend class block_shelf;

  std::atomic<block**> top_{nullptr};  // where the next one goes; read by others
  block** end_ = nullptr;              // as far as there is room
  std::atomic<const void*> user_;      // itself: nobody
  block** bottom_ = nullptr;
};

/// The stacks of one budget of a pool that this thread has used last. Which pool that was is said by a number that no
/// other one ever has, and whether they may be used, they say themselves.
struct last_stacks {
  std::uint64_t pool = 0;
  block_stack* first = nullptr;  // by size class
};
extern constinit thread_local last_stacks last_used[2];  // by budget

}  // namespace weft::mr::detail

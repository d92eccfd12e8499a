// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::mr::detail {

struct block;

/// Free blocks of one size that an executor caches, last in, first out. Only the thread of its user, an executor, takes
/// and gives; other threads set and clear the user, and read how much the stack holds.
class block_stack {
 public:
  /// A stack without a user and without room.
  constexpr block_stack() noexcept : user_(this) {}
  block_stack(const block_stack&) = delete;
  block_stack& operator=(const block_stack&) = delete;

  /// Takes a block. Null if there is none, or if `user` is not the stack's user. A null `user` stands for a thread
  /// without an executor, and gets none.
  [[nodiscard]] block* take(const void* user) noexcept {
    block** const top = top_.load(std::memory_order_relaxed);
    if (user_.load(std::memory_order_relaxed) != user) return nullptr;
    block* const item = top[-1];  // null below the bottom
    if (item != nullptr) top_.store(top - 1, std::memory_order_relaxed);
    return item;
  }
  /// Puts a block back. False if the stack has no room, or if `user` is not its user.
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

  std::atomic<block**> top_{nullptr};  // where the next block goes; other threads read it
  block** end_ = nullptr;              // the end of its room
  std::atomic<const void*> user_;      // its own address: no user
  block** bottom_ = nullptr;
};

/// The stacks of the pool that this thread has used last, for one budget. The pool's number is unique, so a pool that
/// is gone is never mistaken for another; each stack itself says whether it may be used.
struct last_stacks {
  std::uint64_t pool = 0;
  block_stack* first = nullptr;  // an array, by size class
};
extern constinit thread_local last_stacks last_used[2];  // by budget

}  // namespace weft::mr::detail

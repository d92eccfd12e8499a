// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>
#include <weft/mr/pool/block_stack.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::mr::detail {

class slab;

/// A piece of an arena, which backs one buffer. This record lies outside of the data, so that a stray write cannot
/// damage it. It belongs to the holder of its buffer or pins, or else to a cache, or else to the depot.
struct block {
  // The block's use, in one word, so that one comparison tells a buffer that nothing pins the block and that it was not
  // freed before:
  //   bits 0 to 28   the number of operations that only read it; all set: one writes it
  //   bit 29         the buffer is gone, and the last pin gives the block back
  //   bits 30 to 63  its life: how often it was freed, counted from a number that differs from block to block
  // A buffer or pin of an earlier life is one of two bitwise copies, as GCC 12 makes them; the other has freed the
  // block.
  static constexpr std::uint64_t one_pin = 1;
  static constexpr std::uint64_t dropped = std::uint64_t{1} << 29;
  static constexpr std::uint64_t exclusive = dropped - 1;
  static constexpr std::uint64_t one_life = std::uint64_t{1} << 30;

  block* next = nullptr;  // in a list of free blocks, or of the blocks that a waiter has got
  slab* home = nullptr;
  block_stack* stack = nullptr;  // where it is pushed when it is freed, if the running executor owns that stack
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  const memory_record* record = nullptr;  // of the arena
  // Atomic, because an operation that was stopped may still pin a buffer that has been moved to another thread. Taking
  // and freeing a block that is not pinned needs no atomic read-modify-write.
  std::atomic<std::uint64_t> state{0};

  /// The pins and the dropped bit of the state; at least one_life if the block is in another life.
  [[nodiscard]] std::uint64_t use_in(std::uint64_t life) const noexcept {
    return state.load(std::memory_order_acquire) ^ life;
  }
};

/// Frees a block to the pool, when it cannot be pushed on its stack.
void free_slowly(block& item) noexcept;

/// Frees a block that is neither pinned nor dropped, to the running executor's stack if possible.
inline void free_block(block& item) noexcept {
  item.state.store(item.state.load(std::memory_order_relaxed) + block::one_life, std::memory_order_relaxed);
  if (!item.stack->give(item, executor_core::current())) [[unlikely]]
    free_slowly(item);
}

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/block_stack.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::mr::detail {

class slab;

/// A block of an arena that buffers are made of. Kept outside of the data, so that a stray write cannot hurt it.
/// It belongs to whoever holds its buffer or pins, or else to a cache, or else to the depot.
struct block {
  // How it is used, in one word, so that one comparison tells a buffer that nothing pins it and that it was not given
  // back before:
  //   bits 0 to 28   how many operations only read it; all set: one writes it
  //   bit 29         the buffer is gone, and the last pin gives the block back
  //   bits 30 to 63  its life: how often it was given back, from a number on that differs from block to block
  // A buffer or pin of an earlier life was copied bit by bit, as GCC 12 does, and its copy has given the block back.
  static constexpr std::uint64_t one_pin = 1;
  static constexpr std::uint64_t dropped = std::uint64_t{1} << 29;
  static constexpr std::uint64_t exclusive = dropped - 1;
  static constexpr std::uint64_t one_life = std::uint64_t{1} << 30;

  block* next = nullptr;  // in the depot, in a list of the free
  slab* home = nullptr;
  block_stack* stack = nullptr;  // where it goes when it is freed, if that is the running executor's
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  // Atomic, because an operation that was stopped may still pin a buffer that has been moved to another thread; taking
  // and freeing what nobody pins needs no atomic instruction.
  std::atomic<std::uint64_t> state{0};

  /// Of the state: dropped and pins. At least one_life for a state of another life.
  [[nodiscard]] std::uint64_t use_in(std::uint64_t life) const noexcept {
    return state.load(std::memory_order_acquire) ^ life;
  }
};

/// Back to the pool, when this thread keeps no more of them.
void free_slowly(block& item) noexcept;

/// Back to where the running thread keeps free blocks. It is neither pinned nor dropped.
inline void free_block(block& item) noexcept {
  item.state.store(item.state.load(std::memory_order_relaxed) + block::one_life, std::memory_order_relaxed);
  if (!item.stack->give(item, executor_core::current())) [[unlikely]]
    free_slowly(item);
}

}  // namespace weft::mr::detail

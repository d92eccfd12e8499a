// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/slice.hpp>
#include <weft/runtime/result.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace weft::mr {

namespace detail {

class block_stack;
class slab;

/// A block of an arena that buffers are made of. Kept outside of the data, so that a stray write cannot hurt it.
/// It belongs to the executor that holds its buffer or pins, or else to a cache, or else to the depot.
struct block {
  static constexpr std::uint32_t exclusive = UINT32_MAX;

  block* next = nullptr;  // in the depot, in a list of the free
  slab* home = nullptr;
  block_stack* stack = nullptr;  // where it goes when it is freed, if that is the running executor's
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  std::uint32_t pins = 0;  // operations that only read it; `exclusive`: one that writes it
  bool has_buffer = true;  // or is free; false: goes back to the pool with the last pin
};

/// Back to where the running thread keeps free blocks.
void free_block(block& item) noexcept;
[[nodiscard]] slice slice_of(const block& item, std::size_t offset, std::size_t length) noexcept;

}  // namespace detail

/// An owned piece of registered memory, from pool::allocate(). Move-only; goes back to the pool when destroyed, or when
/// the last operation that pins it has ended, if that is later. Keeps its arena alive, even beyond the pool.
///
/// It belongs to one executor at a time, as its pins do; one that no operation uses may be moved to another.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() {
    if (block_ != nullptr) drop();
  }

  void swap(buffer& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
  }
  /// False for one that was moved from.
  explicit operator bool() const noexcept { return block_ != nullptr; }

  [[nodiscard]] std::byte* data() const noexcept { return block_ != nullptr ? block_->data : nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// How far resize() can go: at least what was asked for.
  [[nodiscard]] std::size_t capacity() const noexcept { return block_ != nullptr ? block_->capacity : 0; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size_}; }

  /// Changes size() only. errc::out_of_range beyond capacity().
  void resize(std::size_t bytes);

  /// A borrowed view of `length` bytes from `offset` on. Throws errc::out_of_range.
  [[nodiscard]] mr::slice slice(std::size_t offset, std::size_t length) const;
  [[nodiscard]] mr::slice slice() const noexcept;

  /// Whether an operation pins it.
  [[nodiscard]] bool in_use() const noexcept { return block_ != nullptr && block_->pins != 0; }

 private:
  friend class allocate_operation;
  friend class pool;
  friend class pin;
  buffer(detail::block& item, std::size_t size) noexcept : block_(&item), size_(size) {}
  void drop() noexcept {
    if (block_->pins == 0) return detail::free_block(*block_);
    block_->has_buffer = false;
  }

  detail::block* block_ = nullptr;
  std::size_t size_ = 0;
};

/// What an operation in flight holds of a buffer: as long as it exists, the memory stays where it is and is not handed
/// out again, whatever becomes of the buffer. Move-only. On the buffer's executor.
class pin {
 public:
  pin() noexcept = default;
  pin(pin&& other) noexcept : block_(std::exchange(other.block_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
  pin& operator=(pin&& other) noexcept {
    pin taken(std::move(other));
    std::swap(block_, taken.block_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }
  ~pin() { reset(); }

  /// For an operation that only reads the memory. errc::buffer_in_use if another one writes it,
  /// errc::invalid_argument if the buffer was moved from.
  [[nodiscard]] static result<pin> share(const buffer& target);
  /// For an operation that writes it. errc::buffer_in_use if any other operation uses it.
  [[nodiscard]] static result<pin> exclusive(buffer& target);

  /// One more, of a pin that only reads; empty if this one is.
  [[nodiscard]] pin another() const noexcept {
    if (block_ == nullptr) return {};
    assert(block_->pins != detail::block::exclusive);
    ++block_->pins;
    return {*block_, bytes_};
  }

  explicit operator bool() const noexcept { return block_ != nullptr; }
  /// What the buffer held when it was pinned.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] mr::slice slice() const noexcept;

  void reset() noexcept {
    if (block_ == nullptr) return;
    detail::block& held = *std::exchange(block_, nullptr);
    bytes_ = {};
    held.pins = held.pins == detail::block::exclusive ? 0 : held.pins - 1;
    if (held.pins != 0 || held.has_buffer) return;
    held.has_buffer = true;
    detail::free_block(held);
  }

 private:
  pin(detail::block& item, std::span<std::byte> bytes) noexcept : block_(&item), bytes_(bytes) {}

  detail::block* block_ = nullptr;
  std::span<std::byte> bytes_;
};

}  // namespace weft::mr

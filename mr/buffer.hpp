// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/block.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/result.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace weft::mr {

/// A piece of registered memory that belongs to the program: what pool::allocate() yields. Move-only.
///
/// Its destructor returns the memory to the pool. If operations still use the memory then, the last operation to end
/// returns it. The memory stays valid even if the pool is destroyed first.
///
/// Only one thread at a time may use a buffer: an executor's thread or any other. A buffer may be moved to another
/// thread, and destroyed there, even while an operation uses it.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), size_(std::exchange(other.size_, 0)), life_(other.life_) {}
  buffer& operator=(buffer&& other) noexcept {
    buffer taken(std::move(other));
    reset();
    swap(taken);
    return *this;
  }
  ~buffer() {
    if (block_ != nullptr) drop();
  }

  /// Gives the memory back, as the destructor does.
  void reset() noexcept {
    if (block_ == nullptr) return;
    drop();
    block_ = nullptr;
    size_ = 0;
  }

  void swap(buffer& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    std::swap(life_, other.life_);
  }
  /// False if the buffer is empty: default-constructed, reset, or moved from.
  explicit operator bool() const noexcept { return block_ != nullptr; }

  /// The first byte; null if the buffer is empty.
  [[nodiscard]] std::byte* data() const noexcept { return block_ != nullptr ? block_->data : nullptr; }
  /// In bytes: the size that was requested, or that resize() has set.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The most that resize() accepts: at least the size that was requested.
  [[nodiscard]] std::size_t capacity() const noexcept { return block_ != nullptr ? block_->capacity : 0; }
  /// All size() bytes.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size_}; }

  /// Changes size() only. errc::out_of_range beyond capacity().
  void resize(std::size_t bytes) {
    if (bytes > capacity()) [[unlikely]]
      throw_too_large(bytes);
    size_ = bytes;
  }

  /// A borrowed view of `length` bytes from `offset` on. Throws errc::out_of_range beyond size().
  [[nodiscard]] mr::slice slice(std::size_t offset, std::size_t length) const;
  /// A borrowed view of all size() bytes.
  [[nodiscard]] mr::slice slice() const noexcept {
    if (block_ == nullptr) return {};
    check_only();
    return {{block_->data, size_}, block_->record};
  }

  /// Whether an operation uses the buffer.
  [[nodiscard]] bool in_use() const noexcept { return block_ != nullptr && block_->use_in(life_) != 0; }

 private:
  friend class allocate_operation;
  friend class pool;
  friend class pin;
  buffer(detail::block& item, std::size_t size) noexcept
      : block_(&item), size_(size), life_(item.state.load(std::memory_order_relaxed)) {}
  void drop() noexcept {
    if (block_->use_in(life_) == 0) [[likely]]
      return detail::free_block(*block_);
    drop_in_use();
  }
  void drop_in_use() noexcept;
  // Ends the program if the block was dropped or is in another life: then a bitwise copy of this buffer was destroyed.
  void check_only() const noexcept { static_cast<void>(checked_use()); }
  std::uint64_t checked_use() const noexcept {
    const std::uint64_t use = block_->use_in(life_);
    if (use >= detail::block::dropped) [[unlikely]]
      weft::detail::terminate_because_duplicated("a buffer");
    return use;
  }
  [[noreturn, gnu::cold]] void throw_too_large(std::size_t bytes) const;

  detail::block* block_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t life_ = 0;  // the block's state while nothing pins it
};

/// Keeps the memory of a buffer while an operation on it is in flight: the pool does not hand the memory out again,
/// even if the buffer is destroyed. Move-only. Only one thread at a time may use a pin.
class pin {
 public:
  pin() noexcept = default;
  pin(pin&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), bytes_(std::exchange(other.bytes_, {})), life_(other.life_) {}
  pin& operator=(pin&& other) noexcept {
    pin taken(std::move(other));
    std::swap(block_, taken.block_);
    std::swap(bytes_, taken.bytes_);
    std::swap(life_, taken.life_);
    return *this;
  }
  ~pin() { reset(); }

  /// Pins a buffer for an operation that only reads it. errc::buffer_in_use if another operation writes it,
  /// errc::invalid_argument if the buffer is empty.
  [[nodiscard]] static result<pin> share(const buffer& target);
  /// Pins a buffer for an operation that writes it. errc::buffer_in_use if any other operation uses it,
  /// errc::invalid_argument if the buffer is empty.
  [[nodiscard]] static result<pin> exclusive(buffer& target);

  // For callers that make many pins, because a result costs more than a pin. An empty pin stands for an error, which
  // why_not() returns.
  /// Pins as share() does; empty instead of an error.
  [[nodiscard]] static pin try_share(const buffer& target) noexcept {
    if (!may_share(target)) return {};
    detail::block& item = *target.block_;
    item.state.fetch_add(detail::block::one_pin, std::memory_order_relaxed);
    return {item, target.bytes(), target.life_};
  }
  /// Pins as exclusive() does; empty instead of an error.
  [[nodiscard]] static pin try_exclusive(buffer& target) noexcept {
    if (!may_write(target)) return {};
    target.block_->state.store(target.life_ + detail::block::exclusive, std::memory_order_relaxed);
    return {*target.block_, target.bytes(), target.life_};
  }
  /// The error that share() or exclusive() returns for a buffer that it cannot pin.
  [[nodiscard, gnu::cold]] static error why_not(const buffer& target);
  /// Whether exclusive() yields a pin: no operation uses the buffer.
  [[nodiscard]] static bool may_write(const buffer& target) noexcept { return target && target.checked_use() == 0; }
  /// Whether share() yields a pin: no operation writes the buffer.
  [[nodiscard]] static bool may_share(const buffer& target) noexcept {
    if (!target) return false;
    return (target.checked_use() & detail::block::exclusive) != detail::block::exclusive;
  }

  /// A second pin of the same buffer; empty if this pin is empty. Not for pins made by exclusive().
  [[nodiscard]] pin another() const noexcept {
    if (block_ == nullptr) return {};
    check_only();
    [[maybe_unused]] const std::uint64_t before =
        block_->state.fetch_add(detail::block::one_pin, std::memory_order_relaxed);
    assert((before & detail::block::exclusive) != detail::block::exclusive);
    return {*block_, bytes_, life_};
  }

  explicit operator bool() const noexcept { return block_ != nullptr; }
  /// The buffer's bytes() when it was pinned.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// bytes() as a slice.
  [[nodiscard]] mr::slice slice() const noexcept {
    if (block_ == nullptr) return {};
    check_only();
    return {bytes_, block_->record};
  }

  /// Lets go of the buffer. Does nothing the second time.
  void reset() noexcept {
    if (block_ == nullptr) return;
    check_only();
    detail::block& held = *std::exchange(block_, nullptr);
    bytes_ = {};
    const std::uint64_t pins = held.state.load(std::memory_order_relaxed) & detail::block::exclusive;
    const std::uint64_t mine = pins == detail::block::exclusive ? pins : detail::block::one_pin;
    const std::uint64_t before = held.state.fetch_sub(mine, std::memory_order_acq_rel);
    if (before != life_ + detail::block::dropped + mine) return;
    held.state.store(life_, std::memory_order_relaxed);
    detail::free_block(held);
  }

 private:
  pin(detail::block& item, std::span<std::byte> bytes, std::uint64_t life) noexcept
      : block_(&item), bytes_(bytes), life_(life) {}
  void check_only() const noexcept {
    const std::uint64_t use = block_->use_in(life_);
    if (use >= detail::block::one_life || (use & detail::block::exclusive) == 0) [[unlikely]]
      weft::detail::terminate_because_duplicated("a pin of a buffer, or a shared_buffer");
  }

  detail::block* block_ = nullptr;
  std::span<std::byte> bytes_;
  std::uint64_t life_ = 0;  // the buffer's life_, kept because of GCC 12: see detail::block
};

}  // namespace weft::mr

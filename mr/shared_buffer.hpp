// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace weft::mr {

/// A buffer that is no longer written and has many holders: one payload for many peers, say. It goes back to the pool
/// when the last copy, and the last operation that uses it, has ended.
///
/// Each copy belongs to one executor at a time, and different ones may belong to different executors: they are counted
/// by atomics, and the last one gives the buffer back on whatever thread it goes.
class shared_buffer {
 public:
  shared_buffer() noexcept = default;
  /// Takes the buffer in any case. errc::buffer_in_use while an operation writes it, errc::invalid_argument if it was
  /// moved from.
  explicit shared_buffer(buffer&& memory) {
    const buffer taken(std::move(memory));
    pin_ = pin::share(taken).value();
  }
  shared_buffer(const shared_buffer& other) noexcept : pin_(other.pin_.another()) {}
  shared_buffer(shared_buffer&& other) noexcept = default;
  shared_buffer& operator=(shared_buffer other) noexcept {
    pin_ = std::move(other.pin_);
    return *this;
  }
  ~shared_buffer() = default;

  /// False for one that was moved from.
  explicit operator bool() const noexcept { return static_cast<bool>(pin_); }
  /// What the buffer holds.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return pin_.bytes(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return bytes().size(); }
  /// A borrowed view of it.
  [[nodiscard]] mr::slice slice() const noexcept { return pin_.slice(); }
  /// For an operation: see connection::send().
  [[nodiscard]] pin share() const noexcept { return pin_.another(); }

 private:
  pin pin_;
};

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace weft::mr {

/// A buffer that is no longer written and has many holders: one payload for many peers, say. The memory returns to the
/// pool when the last copy has been destroyed and the last operation on it has ended.
///
/// Each copy pins the buffer. Only one thread at a time may use a copy, but different threads may use different copies
/// at the same time. The last copy or operation to let go of the buffer returns it to the pool, on its own thread.
class shared_buffer {
 public:
  shared_buffer() noexcept = default;
  /// Takes the buffer, even if the constructor throws: errc::buffer_in_use while an operation writes the buffer,
  /// errc::invalid_argument if the buffer is empty.
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

  /// False if empty: default-constructed or moved from.
  explicit operator bool() const noexcept { return static_cast<bool>(pin_); }
  /// The buffer's bytes.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return pin_.bytes(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return bytes().size(); }
  /// A borrowed view of the buffer.
  [[nodiscard]] mr::slice slice() const noexcept { return pin_.slice(); }
  /// A pin for an operation: see connection::send().
  [[nodiscard]] pin share() const noexcept { return pin_.another(); }

 private:
  pin pin_;
};

}  // namespace weft::mr

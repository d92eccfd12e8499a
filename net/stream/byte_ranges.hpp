// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <utility>

namespace weft::net {

/// Ranges of memory that one read or write uses in order. Only the first `max_ranges` are used, because a read or write
/// of "some" may do less than it was asked for.
template <class Byte>
class byte_ranges {
 public:
  static constexpr std::size_t max_ranges = 8;  ///< further ranges are left out

  byte_ranges() = default;
  /// One range.
  byte_ranges(std::span<Byte> one) noexcept { add(one); }
  /// The first max_ranges of several, without the empty ones.
  byte_ranges(std::span<const std::span<Byte>> several) noexcept {
    for (const std::span<Byte>& each : several) {
      if (!add(each)) return;
    }
  }
  /// Adds a range; empty ones do not count. False if there are max_ranges already.
  bool add(std::span<Byte> place) noexcept {
    if (place.empty()) return true;
    if (count_ == max_ranges) return false;
    all_[count_++] = place;
    bytes_ += place.size();
    return true;
  }
  /// The ranges.
  [[nodiscard]] std::span<const std::span<Byte>> all() const noexcept { return {all_.data(), count_}; }
  /// The size of all ranges together.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::array<std::span<Byte>, max_ranges> all_{};
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};
using readable_ranges = byte_ranges<const std::byte>;  ///< the argument of stream::write_some()
using writable_ranges = byte_ranges<std::byte>;        ///< the argument of stream::read_some()

/// Received bytes of a stream, in memory of the pool, which counts against the receive budget as long as the object
/// lives.
class received_bytes {
 public:
  received_bytes() noexcept = default;
  received_bytes(received_bytes&& other) noexcept
      : memory_(std::move(other.memory_)), offset_(std::exchange(other.offset_, 0)) {}
  received_bytes& operator=(received_bytes&& other) noexcept {
    memory_ = std::move(other.memory_);
    offset_ = std::exchange(other.offset_, 0);
    return *this;
  }
  /// The bytes of `memory` from `offset` on.
  received_bytes(mr::buffer memory, std::size_t offset) noexcept : memory_(std::move(memory)), offset_(offset) {}

  /// Whether there are no bytes, because the stream has ended.
  [[nodiscard]] bool empty() const noexcept { return bytes().empty(); }
  /// The bytes.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return memory_.bytes().subspan(offset_); }

 private:
  mr::buffer memory_;
  std::size_t offset_ = 0;
};

}  // namespace weft::net

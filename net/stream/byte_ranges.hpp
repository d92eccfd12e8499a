// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

namespace weft::net {

/// Places that one read or write uses one after another. Of more than `max_ranges` it takes the first, because a read
/// or write of "some" may do less than it was asked for.
template <class Byte>
class byte_ranges {
 public:
  static constexpr std::size_t max_ranges = 8;  ///< more of them are left out

  byte_ranges() = default;
  /// One range.
  byte_ranges(std::span<Byte> one) noexcept { add(one); }
  /// The first max_ranges of several.
  byte_ranges(std::span<const std::span<Byte>> several) noexcept {
    for (const std::span<Byte>& each : several.first(std::min(several.size(), max_ranges))) add(each);
  }
  /// False once there are as many as there can be; what is empty does not count.
  bool add(std::span<Byte> place) noexcept {
    if (place.empty()) return true;
    if (count_ == max_ranges) return false;
    all_[count_++] = place;
    bytes_ += place.size();
    return true;
  }
  /// The ranges.
  [[nodiscard]] std::span<const std::span<Byte>> all() const noexcept { return {all_.data(), count_}; }
  /// Of all ranges together.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::array<std::span<Byte>, max_ranges> all_{};
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};
using readable_ranges = byte_ranges<const std::byte>;  ///< what stream::write_some() takes
using writable_ranges = byte_ranges<std::byte>;        ///< what stream::read_some() fills

/// Bytes of a stream where they were received: memory of the pool, which counts against the receive budget meanwhile.
class received_bytes {
 public:
  received_bytes() noexcept = default;
  /// What is in `memory` from `offset` on.
  received_bytes(mr::buffer memory, std::size_t offset) noexcept : memory_(std::move(memory)), offset_(offset) {}

  /// Whether the stream has ended.
  [[nodiscard]] bool empty() const noexcept { return bytes().empty(); }
  /// The bytes.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return memory_.bytes().subspan(offset_); }

 private:
  mr::buffer memory_;
  std::size_t offset_ = 0;
};

}  // namespace weft::net

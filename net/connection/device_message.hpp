// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/device_keys.hpp>
#include <weft/mr/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::net {

/// What the ends of a connection say to each other about memory of devices that its fabric does not reach.
///
/// Each end lends the other one some host memory, in slots, once the other has asked for it. To write to memory of the
/// peer's device, an end writes to one of its slots there, and asks the peer to put that where it belongs; to read, it
/// asks the peer to get it into a slot, and reads the slot. A slot has one request at a time, so that there are
/// receives for all that is ever under way. All fields are little-endian.
///
///   0  1  what
///   1  1  slot
///   2  1  of an answer: mr::detail::device_access
///   3  1  of a get: 1 if it is a flush, which reads for the sake of its completion
///   4  4  bytes
///   8  8  key: remote_place::key of the place_behind_owner
///  16  8  offset in the memory that the key opens
///  24     of memory: the packed remote_region of all slots; nothing if there is none
struct device_message {
  static constexpr std::size_t slots = 8;
  static constexpr std::size_t slot_bytes = std::size_t{256} << 10;
  static constexpr std::size_t head_bytes = 24;
  static constexpr std::size_t max_bytes = head_bytes + mr::remote_region::max_packed_bytes;
  /// A request of the peer's and an answer of its for each slot, and how the memory is found.
  static constexpr int most_under_way = 2 * static_cast<int>(slots) + 2;

  enum class verb : std::uint8_t {
    ask = 1,     ///< where are my slots?
    memory = 2,  ///< the answer to that
    put = 3,     ///< copy from the slot to the device
    get = 4,     ///< copy from the device to the slot
    answer = 5,  ///< to a put, or a get
  };

  verb what = verb::ask;
  std::uint8_t slot = 0;
  mr::detail::device_access status = mr::detail::device_access::done;
  bool flushes = false;
  std::uint32_t bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;
  std::optional<mr::remote_region> region{};

  /// The first bytes of `out`, which has max_bytes: how many.
  [[nodiscard]] std::size_t pack(std::span<std::byte> out) const noexcept;
  /// Empty if it makes no sense.
  [[nodiscard]] static std::optional<device_message> unpack(std::span<const std::byte> bytes) noexcept;
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/device_keys.hpp>
#include <weft/mr/device_memory.hpp>
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
///   3  1  1: a get is a flush, which reads for the sake of its completion; 2: a put or get is direct
///   4  4  bytes
///   8  8  key: remote_place::key of the place_behind_owner
///  16  8  offset in the memory that the key opens
///  24     of memory: the packed remote_region of all slots; nothing if there is none
///         of share: the handle (64 bytes) of mr::device_share, its offset (8) and how many bytes lie there (8)
///         of a put or get that is direct: where in the shared memory (8)
///
/// Between processes of one machine, an end may share memory of its device for as long as an operation takes. The peer
/// opens it, and copies between that and its own by itself: those requests are direct, and use no slot's memory.
struct device_message {
  static constexpr std::size_t slots = 8;
  static constexpr std::size_t slot_bytes = std::size_t{256} << 10;
  static constexpr std::size_t most_direct_bytes = std::size_t{16} << 20;
  static constexpr std::size_t head_bytes = 24;
  static constexpr std::size_t max_bytes = head_bytes + mr::remote_region::max_packed_bytes;
  /// A request of the peer's and an answer of its for each slot, and how the memory is found.
  static constexpr int most_under_way = 2 * static_cast<int>(slots) + 2;

  enum class verb : std::uint8_t {
    ask = 1,      ///< where are my slots?
    memory = 2,   ///< the answer to that
    put = 3,      ///< copy from the slot to the device
    get = 4,      ///< copy from the device to the slot
    answer = 5,   ///< to a put, a get, a share or an unshare
    share = 6,    ///< open this memory of my device
    unshare = 7,  ///< close it
  };

  verb what = verb::ask;
  std::uint8_t slot = 0;
  mr::detail::device_access status = mr::detail::device_access::done;
  bool flushes = false;
  bool direct = false;
  std::uint32_t bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;
  std::optional<mr::remote_region> region{};
  mr::device_share shared{};        ///< of share
  std::uint64_t shared_bytes = 0;   ///< of share
  std::uint64_t shared_offset = 0;  ///< of a put or get that is direct

  /// The first bytes of `out`, which has max_bytes: how many.
  [[nodiscard]] std::size_t pack(std::span<std::byte> out) const noexcept;
  /// Empty if it makes no sense.
  [[nodiscard]] static std::optional<device_message> unpack(std::span<const std::byte> bytes) noexcept;
};

}  // namespace weft::net

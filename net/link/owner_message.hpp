// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/owner_keys.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/mr/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::net {

/// A message between the ends of a connection about what the owner of memory does for its peer: copying to and from
/// device memory that the fabric does not reach, and making memory of files persistent.
///
/// Each end, once asked, lends its peer host memory, divided into slots. To write to the peer's device memory, an end
/// writes into one of its slots at the peer, and asks the peer to put the slot's bytes into the device. To read, the
/// end asks the peer to get the bytes from the device into a slot, and reads the slot. A slot has one request at a
/// time, which bounds the receives that are needed. All fields are little-endian.
///
///   0  1  verb
///   1  1  slot
///   2  1  answer: mr::detail::owner_access
///   3  1  flags: 0x1 the get is a flush, which reads only for the sake of its completion; 0x2 the put or get is direct
///   4  4  number of bytes to copy or to make persistent
///   8  8  key: remote_place::key of the place_behind_owner
///  16  8  offset in the memory that the key opens
///  24     memory: the packed remote_region of all slots; nothing if there is none
///         share: the handle (64 bytes) of mr::device_share, its offset (8), and the number of bytes there (8)
///         direct put or get: offset in the shared memory (8)
///
/// Between processes of one machine, an end may share memory of its device for the duration of an operation. The peer
/// opens that memory, and copies between it and its own: such requests are direct, and use no slot's memory.
///
/// A persist always has slot 0, so there is one at a time, and it needs no memory of slots. Its bytes, at most
/// most_persistent_bytes, are on storage once it is answered with owner_access::done.
struct owner_message {
  static constexpr std::size_t slots = 8;
  static constexpr std::size_t slot_bytes = std::size_t{256} << 10;
  static constexpr std::size_t most_direct_bytes = std::size_t{16} << 20;
  static constexpr std::size_t most_persistent_bytes = std::size_t{256} << 20;
  static constexpr std::size_t head_bytes = 24;
  static constexpr std::size_t max_bytes = head_bytes + mr::remote_region::max_packed_bytes;
  /// The most messages of the peer in flight: a request and an answer for each slot, an ask, and a memory.
  static constexpr int most_under_way = 2 * static_cast<int>(slots) + 2;
  /// The most messages of the peer in flight if ends only make memory persistent: one request and one answer.
  static constexpr int most_persistent_under_way = 2;

  enum class verb : std::uint8_t {
    ask = 1,      ///< asks where the sender's slots are
    memory = 2,   ///< the answer to an ask
    put = 3,      ///< copy from the slot to the device
    get = 4,      ///< copy from the device to the slot
    answer = 5,   ///< answers a put, get, share, unshare or persist
    share = 6,    ///< asks the peer to open memory of the sender's device
    unshare = 7,  ///< asks the peer to close that memory
    persist = 8,  ///< asks the peer to make its memory persistent: msync(2)
  };

  verb what = verb::ask;
  std::uint8_t slot = 0;
  mr::detail::owner_access status = mr::detail::owner_access::done;
  bool flushes = false;
  bool direct = false;
  std::uint32_t bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;
  std::optional<mr::remote_region> region{};
  mr::device_share shared{};        ///< share: the handle of the memory, and the offset there
  std::uint64_t shared_bytes = 0;   ///< share: the number of bytes from that offset on
  std::uint64_t shared_offset = 0;  ///< direct put or get: the offset in the shared memory

  /// Writes the message to the beginning of `out`, which must have max_bytes, and returns the message's length.
  [[nodiscard]] std::size_t pack(std::span<std::byte> out) const noexcept;
  /// Reads a message; empty if it is invalid. Loads each byte once, because the peer may change the bytes meanwhile.
  [[nodiscard]] static std::optional<owner_message> unpack(std::span<const std::byte> bytes) noexcept;
};

}  // namespace weft::net

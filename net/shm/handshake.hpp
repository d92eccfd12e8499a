// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// The frames that set a connection up, before there is a ring: one packet each. This file only encodes and decodes
// them.
//
//   connector                         acceptor
//       hello  ------------------------->
//              <-------------------------  accept with the channel, or reject
//       ready  ------------------------->
//
// accept() waits for the `ready` frame. So no link is left at the acceptor if the connector cannot map the channel, or
// is stopped before it has sent `ready`.
namespace weft::net::shm {

enum class frame_kind : std::uint8_t { hello = 1, accept = 2, reject = 3, ready = 4 };

enum class reject_reason : std::uint8_t {
  program = 0,        ///< the acceptor's program rejects the peer, or a resource is short; the private data may say why
  other_user = 1,     ///< the connector runs as another user than the acceptor
  other_version = 2,  ///< the acceptor does not speak the version of the hello
  unable = 3,         ///< the acceptor cannot create memory to share; the private data may say why
};

/// All numbers are little-endian:
///
///    0  "weft-shm"
///    8  version, 2 bytes; the rest may differ in other versions
///   10  kind, 1 byte
///   11  reason, 1 byte; 0 except in a reject
///   12  reads that the peer may have outstanding at the sender, 2 bytes
///   14  reads that the sender may have outstanding at the peer, 2 bytes
///   16  length of each ring in bytes, 4 bytes
///   20  private data, up to 56 bytes: the rest of the packet
///
/// In a hello, the numbers at 12, 14 and 16 are the most that the connector wants; in an accept, they are what was
/// agreed. Fields that a kind does not use are 0.
struct frame {
  static constexpr std::uint16_t spoken_version = 2;
  static constexpr std::size_t header_bytes = 20;
  static constexpr std::size_t max_private_bytes = 56;
  static constexpr std::size_t max_bytes = header_bytes + max_private_bytes;

  frame_kind kind = frame_kind::hello;
  reject_reason reason = reject_reason::program;
  std::uint16_t version = spoken_version;
  std::uint16_t incoming_reads = 0;
  std::uint16_t outgoing_reads = 0;
  std::uint32_t ring_bytes = 0;
  std::uint16_t private_bytes = 0;
  std::array<std::byte, max_private_bytes> private_memory{};

  [[nodiscard]] std::span<const std::byte> private_data() const noexcept {
    return std::span(private_memory).first(private_bytes);
  }
  /// Copies `data` into the frame. False if it is more than a frame carries.
  [[nodiscard]] bool set_private_data(std::span<const std::byte> data) noexcept;

  friend bool operator==(const frame&, const frame&) = default;
};

/// How many descriptors a frame of this kind carries.
[[nodiscard]] std::size_t descriptors_of(frame_kind kind) noexcept;

/// Writes a frame, and returns its length.
std::size_t pack(const frame& what, std::span<std::byte, frame::max_bytes> out) noexcept;

enum class frame_status : std::uint8_t {
  good,
  foreign,        ///< not a frame of weft
  other_version,  ///< frame::version says which; no other member is set
  malformed,      ///< a frame of this version, but invalid
};

/// Parses a packet, of which nothing is trusted.
[[nodiscard]] frame_status unpack(std::span<const std::byte> packet, frame& out) noexcept;

}  // namespace weft::net::shm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// What the two ends of a connection tell each other before there is a ring: one packet each, without I/O.
//
//   connector                         acceptor
//       hello  ------------------------->
//              <-------------------------  accept, or reject     with the channel
//       ready  ------------------------->
//
// The last one makes an end of accept(): a connector that could not map the channel, or was stopped before it had, has
// no link, and leaves none at its peer.
namespace weft::net::shm {

enum class frame_kind : std::uint8_t { hello = 1, accept = 2, reject = 3, ready = 4 };

enum class reject_reason : std::uint8_t {
  program = 0,        ///< the private data may say why
  other_user = 1,     ///< the connector runs as another user than the acceptor
  other_version = 2,  ///< the acceptor does not speak the version of the hello
  unable = 3,         ///< the acceptor can have no memory to share; the private data may say why
};

/// All numbers are little-endian:
///
///    0  "weft-shm"
///    8  version, 2 bytes; what follows may be different in others
///   10  kind, 1 byte
///   11  reason, 1 byte; 0 but in a reject
///   12  the reads that the sender may be asked at a time, 2 bytes
///   14  and that it wants to ask, 2 bytes
///   16  bytes in each ring, 4 bytes: the most that is wanted, or in an accept what was agreed
///   20  private data, up to 56 bytes: the rest of the packet
///
/// What a kind has no use for is 0.
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
  /// False if that is more than a frame carries.
  [[nodiscard]] bool set_private_data(std::span<const std::byte> data) noexcept;

  friend bool operator==(const frame&, const frame&) = default;
};

/// How many descriptors come with a frame of this kind.
[[nodiscard]] std::size_t descriptors_of(frame_kind kind) noexcept;

/// Writes a frame, and returns its length.
std::size_t pack(const frame& what, std::span<std::byte, frame::max_bytes> out) noexcept;

enum class frame_status : std::uint8_t {
  good,
  foreign,        ///< none of ours
  other_version,  ///< frame::version says which; nothing else of it is set
  malformed,      ///< of our version, and yet nonsense
};

/// Reads a packet, every byte of which is the peer's.
[[nodiscard]] frame_status unpack(std::span<const std::byte> packet, frame& out) noexcept;

}  // namespace weft::net::shm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/join.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// Messages that the two ends of a connection with rails send each other beside the connection's own messages:
// docs/rails.md.
namespace weft::net::rails {

/// The kind of a control message. The numbers are beyond those of net::message_kind, which is at the same offset.
enum class control_kind : std::uint8_t {
  hello = 0x80,      ///< first message of the connecting end on the first rail, and the answer to it: rails may join
  welcome = 0x81,    ///< the first on a rail that has joined, from the end that has accepted it
  credits = 0x82,    ///< only the trailer, which all kinds have
  fence = 0x83,      ///< a rail has ended: asks to close its link and to report the messages received
  fenced = 0x84,     ///< the answer: nothing that was sent over that rail can arrive any more
  confirm = 0x85,    ///< asks for an answer on the same rail, which shows that earlier writes are in place
  confirmed = 0x86,  ///< the answer
  exposed = 0x87,    ///< the key of exposed memory on one rail
  finish = 0x88,     ///< the sender's requests have all completed, and no more follow
  revoke = 0x8a,     ///< the next message gives exposed memory back, and is received once no key opens that memory
  names = 0x89,      ///< like confirm, but answered after all announcements of exposed memory
  withdrawn = 0x8b,  ///< exposed memory has been taken back
  refused = 0x8c,    ///< an access of the sender was refused, which ended a rail: was that memory taken back?
  listens = 0x90,    ///< before the answer to a hello: an address at which the accepting end listens
};

/// One control message. Numbers are little-endian. The bytes before the trailer depend on the kind (offset, length,
/// meaning):
///
///   fence      0  1 rail;  1  1 whether it was the sender's message rail;  4  4 its epoch
///   fenced     0  1 rail;  4  4 its epoch;  8  8 messages received so far
///   exposed    0  1 rail;  4  4 its epoch;  8  8 handle;  16 8 key;  24 8 address
///   confirm, confirmed            8  8 a number
///   names      8  8 a number;  16 8 the handle of the memory in question, or 0
///   withdrawn  0  1 zero;  1  1 whether its deadline had come;  8  8 handle
///   refused    0  1 rail;  4  4 its epoch;  8  8 handle. The answer is withdrawn, or the end of the connection
///   revoke     8  8 handle
///   listens    0  1 its place among the addresses;  8  2 port;  10  1 whether it is IPv6;  16 16 address
///
/// and the trailer, at the end of the message like that of the connection's own messages:
///
///   0  1  control_kind
///   1  3  zero
///   4  4  control messages other than `credits` that its sender has received over this link, modulo 2^32
struct control {
  static constexpr std::size_t trailer_bytes = 8;
  static constexpr std::size_t max_bytes = 32 + trailer_bytes;
  using storage = std::array<std::byte, max_bytes>;

  control_kind kind = control_kind::credits;
  std::uint32_t received = 0;
  std::uint8_t rail = 0;
  bool carried_messages = false;
  bool at_deadline = false;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;  ///< by kind: messages received, a handle, a number to be confirmed, or port and IPv6 flag
  std::uint64_t key = 0;     ///< by kind: a key, a handle, or the first half of the address
  std::uint64_t address = 0;

  /// Packs the message at the beginning of `out`.
  [[nodiscard]] std::span<const std::byte> pack(storage& out) const noexcept;
  /// Whether a message from the peer is a control message, and not a message of the connection's.
  [[nodiscard]] static bool is_one(std::span<const std::byte> message) noexcept;
  /// Unpacks a message; empty if it is invalid.
  [[nodiscard]] static std::optional<control> unpack(std::span<const std::byte> message) noexcept;
};

}  // namespace weft::net::rails

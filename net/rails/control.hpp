// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/join.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// What the two ends of a connection of several rails say to each other beside its messages: docs/rails.md.
namespace weft::net::rails {

/// What a control message is. The numbers are beyond those of net::message_kind, which stands at the same place.
enum class control_kind : std::uint8_t {
  hello = 0x80,      ///< the first on a connection's first rail, and its answer: rails may join
  welcome = 0x81,    ///< the first on a rail that has joined, from the end that has accepted it
  credits = 0x82,    ///< nothing but what each of them carries
  fence = 0x83,      ///< a rail is over: close your end of it, and say what has come
  fenced = 0x84,     ///< the answer: nothing that was sent over that rail can arrive any more
  confirm = 0x85,    ///< asks for an answer on the same rail, which shows that what was written before is in place
  confirmed = 0x86,  ///< the answer
  exposed = 0x87,    ///< how a rail names memory that was exposed
  finish = 0x88,     ///< its sender sends no more messages
  revoke = 0x8a,     ///< the next message gives exposed memory back, and comes once no key of it opens anything
  names = 0x89,      ///< like confirm: the answer comes once every name of exposed memory that there can be was told
  withdrawn = 0x8b,  ///< memory that was exposed has been taken back
  refused = 0x8c,    ///< over a rail, which has ended by that, its sender was refused memory: was it taken back?
  listens = 0x90,    ///< before the answer to a hello: an address at which the end that has accepted listens
};

/// One control message. Numbers are little-endian; what stands in front of the trailer depends on the kind:
///
///   fence      0  1 rail;  1  1 whether messages came over it;  4  4 its epoch
///   fenced     0  1 rail;  4  4 its epoch;  8  8 messages received so far
///   exposed    0  1 rail;  4  4 its epoch;  8  8 handle;  16 8 key;  24 8 address
///   confirm, confirmed            8  8 a number
///   names      8  8 a number;  16 8 the handle of the memory in question, or 0
///   withdrawn  0  1 zero;  1  1 whether it was lent until then;  8  8 handle
///   refused    0  1 rail;  4  4 its epoch;  8  8 handle. The answer is withdrawn, or the end of the connection
///   revoke     8  8 handle
///   listens    0  1 its place among the addresses;  8  2 port;  10  1 whether it is IPv6;  16 16 address
///
/// and the trailer, at the end of the message like that of a message of the connection's:
///
///   0  1  control_kind
///   1  3  zero
///   4  4  control messages that its sender has received on this rail since the rail began, modulo 2^32
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
  std::uint64_t number = 0;  ///< messages received; the handle; the number to be confirmed
  std::uint64_t key = 0;     ///< of names: the handle
  std::uint64_t address = 0;

  /// Its bytes, at the beginning of `out`.
  [[nodiscard]] std::span<const std::byte> pack(storage& out) const noexcept;
  /// Whether a message of the peer's is one of these, and none of the connection's.
  [[nodiscard]] static bool is_one(std::span<const std::byte> message) noexcept;
  /// Empty if it makes no sense.
  [[nodiscard]] static std::optional<control> unpack(std::span<const std::byte> message) noexcept;
};

}  // namespace weft::net::rails

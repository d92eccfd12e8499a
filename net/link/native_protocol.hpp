// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/device_message.hpp>
#include <weft/net/link/native_features.hpp>
#include <weft/net/options.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// What two weft peers say to each other beyond the transport: a greeting in the private data of the set-up, and a
// trailer behind each message. All fields are little-endian.
namespace weft::net {

/// Versions of what follows, of which an end speaks some. Two ends speak the newest that both know, and none at all is
/// an error that names both, rather than a connection on which weft's peers take each other for strangers.
///
///   1  the greeting of 28 bytes and the trailer of 8 that are described here; features have been added by bits and by
///      bytes that were zero, and ends of any age understand each other
struct version_range {
  std::uint8_t oldest = 1;
  std::uint8_t newest = 1;

  friend constexpr bool operator==(const version_range&, const version_range&) noexcept = default;
};
inline constexpr version_range spoken_versions{};

/// What one end tells the other about itself: the first 28 bytes of its private data; the user's follow. Whatever the
/// version, the name and the two numbers stand where they do here; all else has the form of the oldest version that its
/// sender speaks.
///
///   0  4  "weft"
///   4  1  the newest version that it speaks, 1
///   5  1  features: 0x01 atomics, 0x02 immediate data behind a write, 0x04 large frames; 0x08, of one that accepts: it
///         sends nothing before it has received a message, so that there should be one; 0x10: it answers heartbeats;
///         0x20 several links for a connection (docs/rails.md); 0x40 it waits for one once all are lost; 0x80 it
///         copies to and from memory of devices (device_message)
///   6  2  receive_depth
///   8  4  receive_size
///  12  1  how many bytes of the user's follow: connection managers of RDMA devices pad private data with zeros
///  13  1  the oldest version that it speaks; zero: the same as the newest
///  14  1  fabric: which of its device's fabrics the connection runs on, 0 to 3; the keys that it sends name it
///  15  1  more features: 0x01 it hears of writes (message_kind::written)
///  16  4  key of a landing_place; zero, as from ends that know of none: there is none
///  20  8  its address
struct greeting {
  static constexpr std::size_t bytes = 28;
  static constexpr std::uint32_t largest_receive_size = 1u << 30;

  std::uint16_t receive_depth = 0;
  std::uint32_t receive_size = 0;
  std::uint8_t user_bytes = 0;
  native_features features;
  bool listens_first = false;
  bool answers_heartbeats = false;
  landing_place landing{};
  std::uint8_t fabric = 0;

  [[nodiscard]] std::array<std::byte, bytes> pack() const noexcept;
  /// Empty if the peer is not weft, or says something impossible.
  [[nodiscard]] static std::optional<greeting> unpack(std::span<const std::byte> private_data) noexcept;
  /// The versions that a weft peer speaks, if this end speaks none of them.
  [[nodiscard]] static std::optional<version_range> other_versions(std::span<const std::byte> private_data) noexcept;
  /// What the peer's user has sent: what follows a greeting, or all of it, maybe padded, from a peer that is not weft.
  [[nodiscard]] static std::span<const std::byte> user_data(std::span<const std::byte> private_data) noexcept;
};

/// Private data as it goes over the wire: a greeting, unless the profile forbids it, then the user's.
struct greeting_frame {
  static_assert(greeting::bytes + max_private_data == max_interop_private_data);
  std::array<std::byte, max_interop_private_data> storage{};
  std::size_t size = 0;
  std::size_t greeting_size = 0;

  /// Throws errc::invalid_argument for more of the user's bytes than the profile has room for.
  greeting_frame(const connection_options& options, const native_features& features, const landing_place& landing = {},
                 bool listens_first = false, std::size_t fabric = 0);
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return {storage.data(), size}; }
  /// For a peer that is not weft: the user's bytes alone.
  [[nodiscard]] std::span<const std::byte> user_data() const noexcept { return data().subspan(greeting_size); }
};

enum class message_kind : std::uint8_t {
  data = 1,
  credits = 2,  ///< nothing but the credits
  close = 3,    ///< the last: its sender has closed in order
  data_with_immediate = 4,
  device_memory = 6,  ///< a device_message; it needs no credit, because there are receives for it
  heartbeat = 5,      ///< to a peer that answers them, which it does with any message, a credits message if need be
  written = 7,        ///< to a peer whose fabrics do not see it: its sender has written there, and it is in place
  counted = 8,        ///< the answer to that, before which there is no further one
};

/// The end of each message. It stands behind the payload, not before it, so that the payload is aligned as its buffer.
///
/// Before the trailer of a data_with_immediate stand four bytes more, which are not the payload's either: the immediate
/// data. So it works whatever the transport makes of immediate data. Before that of a written message stands the number
/// of the counter (mr::remote_slice::counter()) in their place.
///
///   0  1  message_kind
///   1  3  of a written message: how many times, 1 to most_writes; else zero
///   4  4  credits: how many data messages the receiver of this trailer may have sent since the set-up, modulo 2^32
struct trailer {
  static constexpr std::size_t bytes = 8;
  static constexpr std::size_t immediate_bytes = 4;
  /// The longest end of a message: receives have so much room beyond receive_size.
  static constexpr std::size_t max_bytes = immediate_bytes + bytes;
  /// Of one written message.
  static constexpr std::uint32_t most_writes = (1u << 24) - 1;
  using storage = std::array<std::byte, max_bytes>;

  message_kind kind = message_kind::data;
  std::uint32_t credits = 0;
  std::uint32_t immediate = 0;  ///< of a data_with_immediate; the counter of a written message
  std::uint32_t writes = 0;     ///< of a written message

  /// What it takes of a message's end.
  [[nodiscard]] std::size_t size() const noexcept {
    return kind == message_kind::data_with_immediate || kind == message_kind::written ? max_bytes : bytes;
  }
  /// Its size() bytes, at the end of `out`.
  [[nodiscard]] std::span<std::byte> pack(storage& out) const noexcept;
  /// Empty if it makes no sense.
  [[nodiscard]] static std::optional<trailer> unpack(std::span<const std::byte> message) noexcept;

 private:
  // Written out, so that compilers make one instruction of each.
  static void put(std::byte* where, std::uint32_t value) noexcept {
    where[0] = static_cast<std::byte>(value);
    where[1] = static_cast<std::byte>(value >> 8);
    where[2] = static_cast<std::byte>(value >> 16);
    where[3] = static_cast<std::byte>(value >> 24);
  }
  [[nodiscard]] static std::uint32_t get(const std::byte* where) noexcept {
    return std::to_integer<std::uint32_t>(where[0]) | std::to_integer<std::uint32_t>(where[1]) << 8 |
           std::to_integer<std::uint32_t>(where[2]) << 16 | std::to_integer<std::uint32_t>(where[3]) << 24;
  }
};

inline std::span<std::byte> trailer::pack(storage& out) const noexcept {
  std::byte* const packed = out.data() + immediate_bytes;
  put(packed, static_cast<std::uint32_t>(kind) | writes << 8);
  put(packed + 4, credits);
  if (size() != max_bytes) return std::span(out).subspan(immediate_bytes);
  put(out.data(), immediate);
  return out;
}

inline std::optional<trailer> trailer::unpack(std::span<const std::byte> message) noexcept {
  if (message.size() < bytes) return std::nullopt;
  const std::byte* const packed = message.data() + message.size() - bytes;
  trailer said;
  said.kind = static_cast<message_kind>(packed[0]);
  said.credits = get(packed + 4);
  switch (said.kind) {
    case message_kind::data:
    case message_kind::device_memory:
      return said;
    case message_kind::credits:
    case message_kind::close:
    case message_kind::heartbeat:
    case message_kind::counted:
      if (message.size() == bytes) return said;
      break;
    case message_kind::written:
      if (message.size() != max_bytes) break;
      said.immediate = get(packed - immediate_bytes);
      said.writes = get(packed) >> 8;
      if (said.writes != 0) return said;
      break;
    case message_kind::data_with_immediate:
      if (message.size() < max_bytes) break;
      said.immediate = get(packed - immediate_bytes);
      return said;
  }
  return std::nullopt;
}

/// What a receive needs for a message of that size, or for one of those between the links of several rails
/// (rails::control).
[[nodiscard]] constexpr std::size_t receive_bytes(std::uint32_t receive_size) noexcept {
  constexpr std::size_t least = 40;
  return std::max(std::size_t{receive_size} + trailer::max_bytes, least);
}
/// The same of a connection, which may also receive a device_message.
[[nodiscard]] constexpr std::size_t receive_bytes(const connection_options& options) noexcept {
  const std::size_t usual = receive_bytes(options.receive_size);
  return options.device_memory ? std::max(usual, device_message::max_bytes + trailer::bytes) : usual;
}

/// Requests that each end may post beyond send_depth: a message of credits, and one that closes.
inline constexpr std::uint16_t control_requests = 2;

/// Receives that each end posts beyond receive_depth, for messages that need no credit. With one receive_depth of
/// messages the peer earns this end two of credits; then there may be a heartbeat, the one that closes, and the answer
/// to one of what this end has written.
inline constexpr std::uint16_t reserved_receives = 5;

/// All receives that an end posts: one more if it sends heartbeats, for the answer, and if it is told what is written.
[[nodiscard]] constexpr std::uint16_t receives_of(const connection_options& options, bool sees_writes) noexcept {
  const int answers = (options.heartbeat.count() > 0 ? 1 : 0) + (sees_writes ? 0 : 1);
  const int device_messages = options.device_memory ? device_message::most_under_way : 0;
  return static_cast<std::uint16_t>(options.receive_depth + reserved_receives + answers + device_messages);
}

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/little_endian.hpp>
#include <weft/net/link/native_features.hpp>
#include <weft/net/link/owner_message.hpp>
#include <weft/net/options.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// The native protocol, which two weft peers speak over any transport: a greeting in the private data of the set-up, and
// a trailer behind each message. All fields are little-endian.
namespace weft::net {

/// The versions of the native protocol that an end speaks. Two ends use the newest version that both speak. If they
/// have none in common, the set-up fails with errc::protocol_error at both, so that neither takes the other for a
/// foreign peer. The end that finds out names both ranges in the error; the other only learns that no version is
/// common.
///
///   1  the greeting of 28 bytes and the trailer of 8 that are described here; features were added in bits and bytes
///      that used to be zero, so ends of any age understand each other
struct version_range {
  std::uint8_t oldest = 1;
  std::uint8_t newest = 1;

  friend constexpr bool operator==(const version_range&, const version_range&) noexcept = default;
};
inline constexpr version_range spoken_versions{};

/// How an end introduces itself: the first 28 bytes of its private data; the user's bytes follow. The magic "weft" and
/// the two version numbers have the same offsets in every version; the other fields have the form of the oldest version
/// that the sender speaks.
///
///   0  4  "weft"
///   4  1  newest version that the sender speaks: 1
///   5  1  features: 0x01 atomics; 0x02 immediate data behind a write; 0x04 large frames; 0x08 the sender accepts and
///         listens first, so the peer should send it a message; 0x10 it answers heartbeats; 0x20 several links for a
///         connection (docs/rails.md); 0x40 it waits for a link once all are lost; 0x80 it copies to and from device
///         memory (owner_message)
///   6  2  receive_depth
///   8  4  receive_size
///  12  1  number of user's bytes that follow, because connection managers of RDMA devices pad private data with zeros
///  13  1  oldest version that the sender speaks; zero: the same as the newest
///  14  1  fabric: index of the sender's fabric that carries the connection, 0 to 3; the sender's keys refer to it
///  15  1  more features: 0x01 it understands write notices (message_kind::written); 0x02 it makes memory of files
///         persistent (owner_message::verb::persist)
///  16  4  key of the sender's landing_place; zero: there is none, as from ends that know of no such place
///  20  8  address of the landing_place
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
  /// Reads a peer's greeting. Empty if the peer is not weft or speaks no common version, or if its greeting is invalid.
  [[nodiscard]] static std::optional<greeting> unpack(std::span<const std::byte> private_data) noexcept;
  /// The versions that a weft peer speaks, if this end speaks none of them; otherwise empty.
  [[nodiscard]] static std::optional<version_range> other_versions(std::span<const std::byte> private_data) noexcept;
  /// The bytes of the peer's user: those that follow a valid greeting, or if there is none, all of `private_data`,
  /// maybe padded.
  [[nodiscard]] static std::span<const std::byte> user_data(std::span<const std::byte> private_data) noexcept;
};

/// Private data as it is sent: a greeting, unless the profile forbids it, then the user's bytes.
struct greeting_frame {
  static_assert(greeting::bytes + max_private_data == max_interop_private_data);
  std::array<std::byte, max_interop_private_data> storage{};
  std::size_t size = 0;
  std::size_t greeting_size = 0;

  /// Throws errc::invalid_argument if the user's bytes exceed the room that the profile leaves.
  greeting_frame(const connection_options& options, const native_features& features, const landing_place& landing = {},
                 bool listens_first = false, std::size_t fabric = 0);
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return {storage.data(), size}; }
  /// The user's bytes alone, for a peer that is not weft.
  [[nodiscard]] std::span<const std::byte> user_data() const noexcept { return data().subspan(greeting_size); }
};

enum class message_kind : std::uint8_t {
  data = 1,
  credits = 2,  ///< carries credits only
  close = 3,    ///< the last message of its sender, which has begun an orderly close
  data_with_immediate = 4,
  device_memory = 6,  ///< an owner_message; needs no credit, because receives are reserved for it
  heartbeat = 5,  ///< asks for any message as an answer, if need be a credits message; sent only to peers that answer
  written = 7,    ///< a write notice: reports the sender's completed writes to a peer whose fabrics do not count them
  counted = 8,    ///< acknowledges a written message; until it arrives, no other written message is sent
};

/// The end of each message. It follows the payload, so that the payload has the alignment of its buffer.
///
/// The immediate data of a data_with_immediate are four more bytes between payload and trailer, so that they do not
/// depend on the transport's support for immediate data. In a written message these four bytes are the number of the
/// counter (mr::remote_slice::counter()).
///
///   0  1  message_kind
///   1  3  written message: number of writes, 1 to most_writes; otherwise zero
///   4  4  credits: how many data messages, counted from the set-up, the receiver of this trailer may send, modulo 2^32
struct trailer {
  static constexpr std::size_t bytes = 8;
  static constexpr std::size_t immediate_bytes = 4;
  /// The longest trailer: each receive has this much room beyond receive_size.
  static constexpr std::size_t max_bytes = immediate_bytes + bytes;
  /// The most writes that one written message reports.
  static constexpr std::uint32_t most_writes = (1u << 24) - 1;
  using storage = std::array<std::byte, max_bytes>;

  message_kind kind = message_kind::data;
  std::uint32_t credits = 0;
  std::uint32_t immediate = 0;  ///< of a data_with_immediate; in a written message, the number of the counter
  std::uint32_t writes = 0;     ///< reported by a written message

  /// The trailer's length in a message.
  [[nodiscard]] std::size_t size() const noexcept {
    return kind == message_kind::data_with_immediate || kind == message_kind::written ? max_bytes : bytes;
  }
  /// Writes the trailer to the end of `out`, and yields its size() bytes there.
  [[nodiscard]] std::span<std::byte> pack(storage& out) const noexcept;
  /// Reads the trailer of a message, each byte once, because the peer may change it meanwhile. Empty if it is invalid.
  [[nodiscard]] static std::optional<trailer> unpack(std::span<const std::byte> message) noexcept;
};

inline std::span<std::byte> trailer::pack(storage& out) const noexcept {
  const std::uint32_t first = writes << 8 | static_cast<std::uint32_t>(kind);
  little_endian::put(out, immediate_bytes, std::uint64_t{credits} << 32 | first);
  if (size() != max_bytes) return std::span(out).subspan(immediate_bytes);
  little_endian::put(out, 0, immediate);
  return out;
}

inline std::optional<trailer> trailer::unpack(std::span<const std::byte> message) noexcept {
  if (message.size() < bytes) return std::nullopt;
  const auto packed = little_endian::get<std::uint64_t>(message.last(bytes), 0);
  trailer said;
  said.kind = static_cast<message_kind>(packed & 0xff);
  said.credits = static_cast<std::uint32_t>(packed >> 32);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from loading the bytes again
  if (said.kind == message_kind::data) [[likely]]
    return said;
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
      said.immediate = little_endian::get<std::uint32_t>(message.last(max_bytes), 0);
      said.writes = static_cast<std::uint32_t>(packed) >> 8;
      if (said.writes != 0) return said;
      break;
    case message_kind::data_with_immediate:
      if (message.size() < max_bytes) break;
      said.immediate = little_endian::get<std::uint32_t>(message.last(max_bytes), 0);
      return said;
  }
  return std::nullopt;
}

/// The size of a receive for a message of `receive_size`; also enough for the control messages of rails
/// (rails::control), and for an owner_message about persistence.
[[nodiscard]] constexpr std::size_t receive_bytes(std::uint32_t receive_size) noexcept {
  constexpr std::size_t least = 40;
  return std::max(std::size_t{receive_size} + trailer::max_bytes, least);
}
static_assert(receive_bytes(0) >= owner_message::head_bytes + trailer::bytes);
/// The size of a connection's receives, which may also have to hold an owner_message about memory of devices.
[[nodiscard]] constexpr std::size_t receive_bytes(const connection_options& options) noexcept {
  const std::size_t usual = receive_bytes(options.receive_size);
  return options.device_memory ? std::max(usual, owner_message::max_bytes + trailer::bytes) : usual;
}

/// Requests that each end may post beyond send_depth: the close message, and one other control message at a time.
inline constexpr std::uint16_t control_requests = 2;

/// Receives that each end posts beyond receive_depth, for messages that need no credit: two credits messages (the peer
/// sends at most two for one receive_depth of messages), a heartbeat, the close message, and the answer to a written
/// message of this end.
inline constexpr std::uint16_t reserved_receives = 5;

/// How many receives an end posts: receive_depth, reserved_receives, one for the answer to a heartbeat, one for write
/// notices if the end's links do not see writes themselves (`sees_writes`), and those for owner messages.
[[nodiscard]] constexpr std::uint16_t receives_of(const connection_options& options, bool sees_writes) noexcept {
  const int answers = (options.heartbeat.count() > 0 ? 1 : 0) + (sees_writes ? 0 : 1);
  const int for_persistence = options.persistent_flush ? owner_message::most_persistent_under_way : 0;
  const int owner_messages = options.device_memory ? owner_message::most_under_way : for_persistence;
  return static_cast<std::uint16_t>(options.receive_depth + reserved_receives + answers + owner_messages);
}

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// The frames and records that the ends of a connection exchange over the TCP socket beside the fabric, without I/O.
//
//   connector                         acceptor
//       hello  ------------------------->
//              <-------------------------  accept, or reject
//       ready  ------------------------->
//
// Each end has the other's endpoint in its address vector before it answers, because some providers let nobody else in.
// accept() ends only with the last frame. So a connector that could not insert the acceptor's endpoint, or was stopped
// before that, has no link, and leaves none at its peer. After the set-up, both ends send records: control_record.
namespace weft::net::fabric {

enum class frame_kind : std::uint8_t { hello = 1, accept = 2, reject = 3, ready = 4 };

enum class reject_reason : std::uint8_t {
  program = 0,         ///< any other reason; the private data may say which
  other_version = 1,   ///< the acceptor does not speak the version of the hello
  other_provider = 2,  ///< the acceptor is on another provider, which the frame names
};

/// A frame of the set-up. All numbers are little-endian:
///
///    0  "weft-fab"
///    8  version, 2 bytes; other versions may differ from here on
///   10  kind, 1 byte
///   11  reason, 1 byte; 0 except in a reject
///   12  lengths of the sender's endpoint address, its provider's name and the private data, in bytes: 1 byte each
///   15  0
///   16  the most reads that the peer may have outstanding at the sender (IRD), 2 bytes
///   18  the most reads that the sender may have outstanding at the peer (ORD), 2 bytes
///   20  0, 4 bytes
///   24  the token that messages to the sender carry, 8 bytes
///   32  the address, the name, the private data
///
/// Fields that a kind does not use are 0.
struct frame {
  static constexpr std::uint16_t spoken_version = 1;
  static constexpr std::size_t header_bytes = 32;
  static constexpr std::size_t max_address_bytes = 128;
  static constexpr std::size_t max_name_bytes = 32;
  static constexpr std::size_t max_private_bytes = 72;
  static constexpr std::size_t max_bytes = header_bytes + max_address_bytes + max_name_bytes + max_private_bytes;

  frame_kind kind = frame_kind::hello;
  reject_reason reason = reject_reason::program;
  std::uint16_t version = spoken_version;
  std::uint16_t incoming_reads = 0;
  std::uint16_t outgoing_reads = 0;
  std::uint64_t token = 0;
  std::uint8_t address_bytes = 0;
  std::uint8_t name_bytes = 0;
  std::uint8_t private_bytes = 0;
  std::array<std::byte, max_address_bytes> address_memory{};
  std::array<char, max_name_bytes> name_memory{};
  std::array<std::byte, max_private_bytes> private_memory{};

  [[nodiscard]] std::span<const std::byte> address() const noexcept {
    return std::span(address_memory).first(address_bytes);
  }
  [[nodiscard]] std::string_view name() const noexcept { return {name_memory.data(), name_bytes}; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept {
    return std::span(private_memory).first(private_bytes);
  }
  /// Stores the address or the private data; false if it is longer than a frame allows.
  [[nodiscard]] bool set_address(std::span<const std::byte> address) noexcept;
  [[nodiscard]] bool set_private_data(std::span<const std::byte> data) noexcept;
  /// Stores the name, cut off after max_name_bytes.
  void set_name(std::string_view name) noexcept;
};

/// Writes a frame, and returns its length.
std::size_t pack(const frame& what, std::span<std::byte, frame::max_bytes> out) noexcept;

enum class frame_status : std::uint8_t {
  good,
  foreign,        ///< not a frame of weft's
  other_version,  ///< frame::version has the number; no other field is set
  malformed,      ///< of our version, but with invalid fields
};

/// Whether these first bytes may begin a frame of ours.
[[nodiscard]] bool may_be_ours(std::span<const std::byte> beginning) noexcept;
/// Parses a header, which is untrusted, into all of `out` except the address, the name and the private data.
[[nodiscard]] frame_status unpack(std::span<const std::byte, frame::header_bytes> header, frame& out) noexcept;
/// The number of bytes that follow that header.
[[nodiscard]] std::size_t rest_of(const frame& header) noexcept;
/// Stores the address, the name and the private data in `out`: the rest_of() bytes that followed the header.
void unpack_rest(std::span<const std::byte> rest, frame& out) noexcept;

/// A record from one end of an established connection to the other, over the socket: 32 bytes, little-endian.
///
/// Providers report the refusal of an access in different ways, if at all: some break the connection off, some stay
/// silent. So the end whose access has failed, or takes long, asks the owner of the memory.
///
/// No provider reports the end of an access that was in flight when its region was closed: fi_mr(3) leaves that to the
/// program. So the owner of memory that is taken back asks each peer that may have accesses in flight.
struct control_record {
  static constexpr std::size_t bytes = 32;
  enum kind_t : std::uint8_t {
    finished = 1,  ///< the sender sends no more messages: the next one would have the number `messages`
    drained = 2,   ///< the sender has all messages of the other end, which has finished
    broken = 3,    ///< the sender has broken the connection off
    asks = 4,      ///< asks whether the sender may access `length` bytes from `address` by `key`
    answers = 5,   ///< answers an `asks`
    fences = 6,    ///< the sender has revoked `key`, and asks whether accesses by it are in flight
    fenced = 7,    ///< answers a `fences`; if accesses are in flight, a second one follows when they have ended
  };
  enum reason_t : std::uint8_t {
    // broken:
    aborted = 0,
    refused_you = 1,  ///< the sender has refused an access of the other end's by `key`
    refused_us = 2,   ///< the other end has refused an access of the sender's by `key`
    rules = 3,        ///< the other end has broken the protocol
    // asks: the rights that the access needs, combined by OR. answers: `reading` if it is allowed, `revoking` if its
    // key is being revoked, so that the access may have been allowed when it began, else `aborted`.
    reading = 1,
    writing = 2,
    revoking = 2,
    // fenced:
    under_way = 0,
    none_under_way = 1,
  };

  std::uint8_t kind = finished;   ///< byte 0
  std::uint8_t reason = aborted;  ///< byte 1
  std::uint32_t messages = 0;     ///< bytes 4 to 7
  std::uint64_t key = 0;          ///< bytes 8 to 15
  std::uint64_t address = 0;      ///< bytes 16 to 23: where an access begins
  std::uint64_t length = 0;       ///< bytes 24 to 31: the length of that access

  friend bool operator==(const control_record&, const control_record&) = default;
};
[[nodiscard]] std::array<std::byte, control_record::bytes> pack(const control_record& what) noexcept;
[[nodiscard]] control_record unpack(std::span<const std::byte, control_record::bytes> bytes) noexcept;

/// The trailer of each message: 32 bytes, little-endian.
struct message_trailer {
  static constexpr std::size_t bytes = 32;
  enum flags_t : std::uint8_t {
    invalidates = 2,  ///< `key` is to be revoked
    immediate = 4,    ///< the immediate data of a write; there is no payload
  };

  /// The number of a sender's first message, close to the wrap, so that tests cover the wrap.
  static constexpr std::uint32_t first_number = UINT32_MAX - 99;

  std::uint8_t flags = 0;    ///< byte 0
  std::uint32_t number = 0;  ///< bytes 4 to 7: counts the sender's messages, modulo 2^32
  std::uint64_t key = 0;     ///< bytes 8 to 15
  std::uint32_t value = 0;   ///< bytes 16 to 19: the immediate data
  std::uint64_t token = 0;   ///< bytes 24 to 31: the receiver's, which no stranger knows

  friend bool operator==(const message_trailer&, const message_trailer&) = default;
};
void pack(const message_trailer& what, std::span<std::byte, message_trailer::bytes> out) noexcept;
[[nodiscard]] message_trailer unpack_trailer(std::span<const std::byte, message_trailer::bytes> bytes) noexcept;

}  // namespace weft::net::fabric

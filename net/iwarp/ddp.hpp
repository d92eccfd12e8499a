// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// The header at the front of every ULPDU, which combines DDP's fields with RDMAP's opcode
// (RFC 5041 section 4, RFC 5040 section 4.1).
namespace weft::net::iwarp {

/// RDMAP messages. 8 to B are from RFC 7306; weft uses these with weft peers only.
enum class opcode : std::uint8_t {
  write = 0x0,
  read_request = 0x1,
  read_response = 0x2,
  send = 0x3,
  send_with_invalidate = 0x4,
  send_solicited = 0x5,
  send_solicited_with_invalidate = 0x6,
  terminate = 0x7,
  immediate = 0x8,
  immediate_solicited = 0x9,
  atomic_request = 0xA,
  atomic_response = 0xB,
};

inline constexpr std::uint8_t ddp_version = 1;
inline constexpr std::uint8_t rdmap_version = 1;

/// Queues of untagged messages.
inline constexpr std::uint32_t send_queue = 0;
inline constexpr std::uint32_t read_request_queue = 1;
inline constexpr std::uint32_t terminate_queue = 2;
inline constexpr std::uint32_t atomic_response_queue = 3;

/// The two control bytes as received, unchecked.
struct control {
  bool tagged = false;
  bool last = false;
  std::uint8_t ddp_version = iwarp::ddp_version;
  std::uint8_t rdmap_version = iwarp::rdmap_version;
  iwarp::opcode opcode = opcode::write;
};

inline constexpr std::size_t control_bytes = 2;

/// The header of a segment that names its destination by STag and offset.
struct tagged_header {
  static constexpr std::size_t bytes = 14;

  bool last = true;
  iwarp::opcode opcode = opcode::write;
  std::uint32_t stag = 0;
  std::uint64_t offset = 0;
};

/// The header of a segment that goes into the next buffer of a queue.
struct untagged_header {
  static constexpr std::size_t bytes = 18;

  bool last = true;
  iwarp::opcode opcode = opcode::send;
  std::uint32_t invalidate_stag = 0;
  std::uint32_t queue = send_queue;
  std::uint32_t sequence = 1;  ///< MSN: from 1 in each queue, wraps to 0
  std::uint32_t offset = 0;    ///< MO: of the payload in its message
};

// The functions below are inline, because they run for every FPDU.

inline constexpr unsigned tagged_bit = 0x80;
inline constexpr unsigned last_bit = 0x40;

inline void encode_control(bool tagged, bool last, opcode op, std::byte* out) noexcept {
  out[0] = static_cast<std::byte>((tagged ? tagged_bit : 0) | (last ? last_bit : 0) | ddp_version);
  out[1] = static_cast<std::byte>(rdmap_version << 6 | static_cast<unsigned>(op));
}

[[nodiscard]] inline control parse_control(std::span<const std::byte, control_bytes> bytes) noexcept {
  const auto ddp = std::to_integer<unsigned>(bytes[0]);
  const auto rdmap = std::to_integer<unsigned>(bytes[1]);
  return {.tagged = (ddp & tagged_bit) != 0,
          .last = (ddp & last_bit) != 0,
          .ddp_version = static_cast<std::uint8_t>(ddp & 3),
          .rdmap_version = static_cast<std::uint8_t>(rdmap >> 6),
          .opcode = static_cast<iwarp::opcode>(rdmap & 0xF)};
}

[[nodiscard]] inline tagged_header parse_tagged(std::span<const std::byte, tagged_header::bytes> bytes) noexcept {
  const control front = parse_control(bytes.first<control_bytes>());
  return {.last = front.last,
          .opcode = front.opcode,
          .stag = load_be<std::uint32_t>(&bytes[2]),
          .offset = load_be<std::uint64_t>(&bytes[6])};
}

[[nodiscard]] inline untagged_header parse_untagged(std::span<const std::byte, untagged_header::bytes> bytes) noexcept {
  const control front = parse_control(bytes.first<control_bytes>());
  return {.last = front.last,
          .opcode = front.opcode,
          .invalidate_stag = load_be<std::uint32_t>(&bytes[2]),
          .queue = load_be<std::uint32_t>(&bytes[6]),
          .sequence = load_be<std::uint32_t>(&bytes[10]),
          .offset = load_be<std::uint32_t>(&bytes[14])};
}

inline void encode(const tagged_header& header, std::span<std::byte, tagged_header::bytes> out) noexcept {
  encode_control(true, header.last, header.opcode, out.data());
  store_be(&out[2], header.stag);
  store_be(&out[6], header.offset);
}

inline void encode(const untagged_header& header, std::span<std::byte, untagged_header::bytes> out) noexcept {
  encode_control(false, header.last, header.opcode, out.data());
  store_be(&out[2], header.invalidate_stag);
  store_be(&out[6], header.queue);
  store_be(&out[10], header.sequence);
  store_be(&out[14], header.offset);
}

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// The header at the front of every ULPDU: DDP's fields and RDMAP's opcode in one
// (RFC 5041 section 4, RFC 5040 section 4.1).
namespace weft::net::iwarp {

/// RDMAP messages. 8 to B are those of RFC 7306, which only weft peers agree on.
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

/// The two control bytes, as they came in: nothing is checked but their presence.
struct control {
  bool tagged = false;
  bool last = false;
  std::uint8_t ddp_version = iwarp::ddp_version;
  std::uint8_t rdmap_version = iwarp::rdmap_version;
  iwarp::opcode opcode = opcode::write;
};

inline constexpr std::size_t control_bytes = 2;
[[nodiscard]] control parse_control(std::span<const std::byte, control_bytes> bytes) noexcept;

/// A segment that names its place by steering tag and offset.
struct tagged_header {
  static constexpr std::size_t bytes = 14;

  bool last = true;
  iwarp::opcode opcode = opcode::write;
  std::uint32_t stag = 0;
  std::uint64_t offset = 0;
};

/// A segment that goes into the next buffer of a queue.
struct untagged_header {
  static constexpr std::size_t bytes = 18;

  bool last = true;
  iwarp::opcode opcode = opcode::send;
  std::uint32_t invalidate_stag = 0;
  std::uint32_t queue = send_queue;
  std::uint32_t sequence = 1;  ///< MSN: from 1 in each queue, wraps to 0
  std::uint32_t offset = 0;    ///< MO: of the payload in its message
};

[[nodiscard]] tagged_header parse_tagged(std::span<const std::byte, tagged_header::bytes> bytes) noexcept;
[[nodiscard]] untagged_header parse_untagged(std::span<const std::byte, untagged_header::bytes> bytes) noexcept;
void encode(const tagged_header& header, std::span<std::byte, tagged_header::bytes> out) noexcept;
void encode(const untagged_header& header, std::span<std::byte, untagged_header::bytes> out) noexcept;

}  // namespace weft::net::iwarp

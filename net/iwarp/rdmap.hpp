// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/software/atomic_request.hpp>
#include <weft/net/software/words.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// The bodies of RDMAP's own messages: read requests and Terminate (RFC 5040 sections 4.4 and 4.8), atomic requests and
// their responses (RFC 7306 section 5.2).
namespace weft::net::iwarp {

using software::atomic_operation;
using software::atomic_request;
using software::words;

/// A request for bytes of the other end's memory. The response carries the STag and the offset of the requester's sink.
struct read_request {
  static constexpr std::size_t bytes = 28;

  std::uint32_t sink_stag = 0;
  std::uint64_t sink_offset = 0;
  std::uint32_t size = 0;
  std::uint32_t source_stag = 0;
  std::uint64_t source_offset = 0;
};

[[nodiscard]] read_request parse_read_request(std::span<const std::byte, read_request::bytes> bytes) noexcept;
void encode(const read_request& request, std::span<std::byte, read_request::bytes> out) noexcept;

[[nodiscard]] atomic_request parse_atomic_request(std::span<const std::byte, atomic_request::bytes> bytes) noexcept;
void encode(const atomic_request& request, std::span<std::byte, atomic_request::bytes> out) noexcept;

struct atomic_response {
  static constexpr std::size_t bytes = 12;

  std::uint32_t id = 0;
  std::uint64_t previous = 0;
};

[[nodiscard]] atomic_response parse_atomic_response(std::span<const std::byte, atomic_response::bytes> bytes) noexcept;
void encode(const atomic_response& response, std::span<std::byte, atomic_response::bytes> out) noexcept;

/// Why a stream was terminated: layer, error type, error code.
struct terminate_code {
  std::uint8_t layer = 0;  // 4 bits
  std::uint8_t type = 0;   // 4 bits
  std::uint8_t code = 0;

  friend constexpr bool operator==(const terminate_code&, const terminate_code&) noexcept = default;
};

/// The causes of RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8 and RFC 6581 section 8.
namespace cause {
inline constexpr terminate_code rdmap_catastrophic{0, 0, 0};
inline constexpr terminate_code read_invalid_stag{0, 1, 0x00};
inline constexpr terminate_code read_bounds{0, 1, 0x01};
inline constexpr terminate_code read_access{0, 1, 0x02};
inline constexpr terminate_code read_not_associated{0, 1, 0x03};
inline constexpr terminate_code read_wrap{0, 1, 0x04};
inline constexpr terminate_code cannot_invalidate{0, 1, 0x09};
inline constexpr terminate_code protection_unspecified{0, 1, 0xFF};
inline constexpr terminate_code rdmap_version{0, 2, 0x05};
inline constexpr terminate_code unexpected_opcode{0, 2, 0x06};
inline constexpr terminate_code stream_catastrophic{0, 2, 0x07};
inline constexpr terminate_code global_catastrophic{0, 2, 0x08};
inline constexpr terminate_code operation_cannot_invalidate{0, 2, 0x09};
inline constexpr terminate_code operation_unspecified{0, 2, 0xFF};
inline constexpr terminate_code ddp_catastrophic{1, 0, 0x00};
inline constexpr terminate_code tagged_invalid_stag{1, 1, 0x00};
inline constexpr terminate_code tagged_bounds{1, 1, 0x01};
inline constexpr terminate_code tagged_not_associated{1, 1, 0x02};
inline constexpr terminate_code tagged_wrap{1, 1, 0x03};
inline constexpr terminate_code tagged_version{1, 1, 0x04};
inline constexpr terminate_code untagged_queue{1, 2, 0x01};
inline constexpr terminate_code untagged_no_buffer{1, 2, 0x02};
inline constexpr terminate_code untagged_sequence{1, 2, 0x03};
inline constexpr terminate_code untagged_offset{1, 2, 0x04};
inline constexpr terminate_code untagged_too_long{1, 2, 0x05};
inline constexpr terminate_code untagged_version{1, 2, 0x06};
inline constexpr terminate_code tcp_lost{2, 0, 0x01};
inline constexpr terminate_code crc_mismatch{2, 0, 0x02};
inline constexpr terminate_code framing{2, 0, 0x03};
inline constexpr terminate_code bad_set_up_frame{2, 0, 0x04};
inline constexpr terminate_code mpa_catastrophic{2, 0, 0x05};
inline constexpr terminate_code insufficient_ird{2, 0, 0x06};
inline constexpr terminate_code no_common_ready_signal{2, 0, 0x07};
}  // namespace cause

/// The text of a cause: "remote protection error: invalid STag".
[[nodiscard]] words describe(terminate_code code) noexcept;

/// Whether the peer, by a Terminate with this cause, has refused an access to its memory, or an invalidation.
[[nodiscard]] bool is_remote_access_error(terminate_code code) noexcept;

/// A Terminate message.
struct terminate_message {
  /// The largest body: control, segment length, untagged header, read request.
  static constexpr std::size_t max_bytes = 4 + 2 + untagged_header::bytes + read_request::bytes;

  terminate_code code{};
  /// The length of the segment that caused the Terminate. The RFC counts the whole segment, Linux siw only its payload.
  std::optional<std::uint16_t> segment_bytes{};
  /// That segment's DDP header: 14 bytes if tagged, 18 if not, 0 if the message has none.
  std::array<std::byte, untagged_header::bytes> segment_header{};
  std::size_t segment_header_bytes = 0;
  /// The read request that caused the Terminate. A weft peer leaves out the bytes that it had already sent in response.
  std::optional<iwarp::read_request> read{};
  /// Set by parse_terminate() if the peer writes the bit fields in reverse, as Linux siw does.
  bool reversed = false;
};

/// Writes a Terminate's body; returns its length.
[[nodiscard]] std::size_t encode(const terminate_message& message,
                                 std::span<std::byte, terminate_message::max_bytes> out) noexcept;

/// Parses a Terminate's body, also with the reversed bit fields of Linux siw. Fields that are cut off count as absent.
/// Empty if the body is shorter than the four bytes of its control field.
[[nodiscard]] std::optional<terminate_message> parse_terminate(std::span<const std::byte> body) noexcept;

}  // namespace weft::net::iwarp

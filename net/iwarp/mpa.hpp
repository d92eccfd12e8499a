// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/software/words.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// MPA: the set-up frames (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9) and the framing of FPDUs
// (RFC 5044 section 4). No markers: weft neither sends nor asks for them.
namespace weft::net::iwarp::mpa {

using software::words;

/// Bytes of a set-up frame before its private data.
inline constexpr std::size_t frame_header_bytes = 20;
/// The most private data of a frame, including the four bytes of an enhanced set-up.
inline constexpr std::size_t max_private_bytes = 512;
/// Bytes of the IRD, the ORD and the control flags of RFC 6581 section 9, ahead of the user's private data.
inline constexpr std::size_t enhanced_bytes = 4;
/// The largest set-up frame.
inline constexpr std::size_t max_frame_bytes = frame_header_bytes + max_private_bytes;
/// An IRD or ORD that says "do not negotiate" (RFC 6581 section 9.1).
inline constexpr std::uint16_t not_negotiated = 0x3FFF;

enum class frame_kind : std::uint8_t { request, reply };

/// The enhanced connection data of RFC 6581 section 9. Flags B, C and D mean nothing unless A is set.
struct enhanced_data {
  std::uint16_t ird = 0;
  std::uint16_t ord = 0;
  bool peer_to_peer = false;  ///< A: the initiator sends a ready-to-receive message by itself
  bool rtr_send = false;      ///< B: a zero-length Send can be that message
  bool rtr_write = false;     ///< C: a zero-length RDMA Write can
  bool rtr_read = false;      ///< D: a zero-length RDMA Read can
};

/// A Request or Reply frame.
struct frame {
  frame_kind kind = frame_kind::request;
  bool markers = false;   ///< M: the sender wants markers in what it receives
  bool crc = false;       ///< C: the sender wants CRCs, which turns them on both ways
  bool rejected = false;  ///< R: in replies only
  std::uint8_t revision = 2;
  std::optional<enhanced_data> enhanced{};    ///< S: whether these data are present; in revision 2 only
  std::span<const std::byte> private_data{};  ///< the user's; borrowed from the parsed bytes or the caller
};

enum class parse_status : std::uint8_t { incomplete, complete, malformed };

struct parsed_frame {
  parse_status status = parse_status::incomplete;
  std::size_t bytes = 0;  ///< complete: the length of the frame; incomplete: a lower bound of it
  mpa::frame frame{};     ///< valid when complete; its private data lies in the parsed bytes
  words error{};          ///< says what is wrong when malformed
};

/// Parses a set-up frame at the front of `bytes`, which may hold less or more than one frame. Reports `malformed` as
/// soon as the bytes cannot begin a frame of this kind.
[[nodiscard]] parsed_frame parse_frame(std::span<const std::byte> bytes, frame_kind expected) noexcept;

/// Writes a set-up frame; returns its length, or 0 if the private data, with the enhanced_bytes if there are any,
/// exceeds max_private_bytes. `out` must hold at least max_frame_bytes.
[[nodiscard]] std::size_t encode_frame(const frame& frame, std::span<std::byte> out) noexcept;

/// Bytes of the ULPDU_Length field.
inline constexpr std::size_t length_bytes = 2;
inline constexpr std::size_t crc_bytes = 4;
/// The largest ULPDU that a peer may send (RFC 5044 section 3).
inline constexpr std::size_t max_ulpdu_bytes = 64768;
/// The least limit on a sender's ULPDUs, however short TCP's segments are (RFC 5044 section 4.5).
inline constexpr std::size_t min_mulpdu_bytes = 128;

/// The number of pad bytes between a ULPDU and its CRC; their value is zero.
[[nodiscard]] constexpr std::size_t pad_bytes(std::size_t ulpdu_bytes) noexcept {
  return (0 - (length_bytes + ulpdu_bytes)) & 3;
}

/// Bytes of the whole FPDU: length, ULPDU, pad and CRC.
[[nodiscard]] constexpr std::size_t fpdu_bytes(std::size_t ulpdu_bytes) noexcept {
  return length_bytes + ulpdu_bytes + pad_bytes(ulpdu_bytes) + crc_bytes;
}

/// The largest FPDU. A staging area must hold at least this much, because a smaller one might make no progress.
inline constexpr std::size_t max_fpdu_bytes = fpdu_bytes(max_ulpdu_bytes);

/// The largest ULPDU that fits a TCP segment of `emss` bytes without markers (RFC 5044 section 4.5), but at least
/// min_mulpdu_bytes and at most max_ulpdu_bytes.
[[nodiscard]] constexpr std::size_t mulpdu(std::size_t emss) noexcept {
  const std::size_t overhead = length_bytes + crc_bytes + emss % 4;
  if (emss < min_mulpdu_bytes + overhead) return min_mulpdu_bytes;
  return emss - overhead < max_ulpdu_bytes ? emss - overhead : max_ulpdu_bytes;
}

/// Writes an FPDU around a small ULPDU; returns the FPDU's length. `out` must hold at least fpdu_bytes(ulpdu.size()).
std::size_t encode_fpdu(std::span<const std::byte> ulpdu, bool with_crc, std::span<std::byte> out) noexcept;

/// Writes the CRC field, which is little-endian, as in iSCSI. If no CRCs are used, the field may hold anything (RFC
/// 5044 section 4.1).
inline void store_crc(std::byte* to, std::uint32_t crc) noexcept {
  for (std::size_t i = 0; i < crc_bytes; ++i) to[i] = static_cast<std::byte>(crc >> 8 * i);
}
[[nodiscard]] inline std::uint32_t load_crc(const std::byte* from) noexcept {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < crc_bytes; ++i) crc |= std::to_integer<std::uint32_t>(from[i]) << 8 * i;
  return crc;
}

}  // namespace weft::net::iwarp::mpa

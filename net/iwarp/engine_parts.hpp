// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/iwarp/wire.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// Small functions that several sources of the engine need, inline because they run for every FPDU.
namespace weft::net::iwarp {

/// Immediate data of eight bytes, of which only the first four are used, because InfiniBand has four.
struct immediate_data {
  static constexpr std::size_t bytes = 8;
  std::uint32_t value;
};

inline void encode(const immediate_data& data, std::span<std::byte, immediate_data::bytes> out) noexcept {
  store_be(&out[0], data.value);
  store_be(&out[4], std::uint32_t{0});
}

template <class Body>
using ulpdu_of = std::array<std::byte, untagged_header::bytes + Body::bytes>;

inline bool is_send(opcode op) noexcept { return op >= opcode::send && op <= opcode::send_solicited_with_invalidate; }

inline bool is_immediate(opcode op) noexcept { return op == opcode::immediate || op == opcode::immediate_solicited; }

inline bool invalidates(opcode op) noexcept {
  return op == opcode::send_with_invalidate || op == opcode::send_solicited_with_invalidate;
}

inline bool wraps(std::uint64_t offset, std::uint64_t bytes) noexcept { return offset + bytes < offset; }

/// The contiguous bytes of a request's memory at a cursor, at most `limit`. Moves the cursor past segments that are
/// empty or used up; the cursor must not be at the end.
template <class Request, class Cursor>
std::span<std::byte> piece_at(const Request& request, Cursor& at, std::size_t limit) noexcept {
  while (at.segment != request.local.size() && at.offset == request.local[at.segment].size()) {
    at = {.segment = at.segment + 1, .offset = 0};
  }
  const std::span<std::byte> whole =
      at.segment != request.local.size() ? request.local[at.segment].bytes() : request.tail;
  return whole.subspan(at.offset, std::min(limit, whole.size() - at.offset));
}

template <class Body>
ulpdu_of<Body> encode_message(const untagged_header& header, const Body& body) noexcept {
  ulpdu_of<Body> ulpdu;
  encode(header, std::span(ulpdu).template first<untagged_header::bytes>());
  encode(body, std::span(ulpdu).template last<Body::bytes>());
  return ulpdu;
}

inline ulpdu_of<read_request> encode_query(std::uint32_t sequence, const read_request& body) noexcept {
  return encode_message({.opcode = opcode::read_request, .queue = read_request_queue, .sequence = sequence}, body);
}

inline ulpdu_of<atomic_request> encode_query(std::uint32_t sequence, const atomic_request& body) noexcept {
  return encode_message({.opcode = opcode::atomic_request, .queue = read_request_queue, .sequence = sequence}, body);
}

}  // namespace weft::net::iwarp

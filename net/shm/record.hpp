// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/ring.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace weft::net::shm {

/// What stands in a ring: records, each a header and then its payload, each at a multiple of a cache line. A record
/// lies in one piece: what does not fit before the end of the ring begins at its beginning, behind a `skip`.
///
/// Both ends are of one machine and one version, so numbers are in its byte order. Everything in it is the peer's word.
enum class record_kind : std::uint8_t {
  skip = 1,      ///< nothing, up to the end of the ring
  send,          ///< the beginning of a message, or all of it
  write,         ///< the beginning of a write, or all of it
  more,          ///< what follows of a message or a write
  read,          ///< asks for bytes
  fetch_add,     ///< asks for that; the payload is an atomic_operands
  compare_swap,  ///< likewise
  answer,        ///< a part of what the oldest unanswered read has asked for
  value,         ///< what the word held before, for the oldest unanswered request that is atomic
  offer,         ///< lends memory for direct access: its file is in the socket; the payload is an offered_memory
  taken,         ///< the answer to an offer
  withdrawn,     ///< ends a loan
  returned,      ///< the answer to that: this end has the memory mapped no more
  fence,         ///< asks for `fenced` once all that was written before is in its place
  fenced,        ///< the answer to that
  prove,         ///< asks whether the other end can copy out of this one's memory; the payload is a proof_word
  proven,        ///< the answer to that
  copied,        ///< the payload of the oldest request that was `far` has arrived
  finished,      ///< the last record of an end that sends no more
  broken,        ///< the last record of an end that has ended otherwise; the payload are words
};

struct record {
  static constexpr std::uint8_t solicited = 0x01;    ///< of send, and of write with immediate data
  static constexpr std::uint8_t immediate = 0x02;    ///< of write: immediate data come behind it
  static constexpr std::uint8_t invalidates = 0x04;  ///< of send: `key` is one of the receiver's, to be revoked
  static constexpr std::uint8_t far = 0x08;       ///< of send and write: the payload are the far_pieces of what is sent
  static constexpr std::uint8_t readable = 0x01;  ///< of offer, with `writable` and `atomic`: what the key allows
  static constexpr std::uint8_t writable = 0x02;
  static constexpr std::uint8_t atomic = 0x04;
  static constexpr std::uint8_t declined = 0x01;  ///< of taken: it was not; of proven: it cannot

  record_kind kind = record_kind::skip;
  std::uint8_t flags = 0;
  std::uint16_t reason = 0;   ///< of broken: a break_reason
  std::uint32_t bytes = 0;    ///< of its payload
  std::uint64_t total = 0;    ///< of send, write, read and offer: how many bytes there are together
  std::uint64_t address = 0;  ///< of write, read, atomic operations, offer, and of a broken one that refuses such
  std::uint32_t key = 0;      ///< likewise
  std::uint32_t number = 0;   ///< the immediate data; of broken: which of all requests was refused; the loan's
};
static_assert(sizeof(record) == 32 && std::is_trivially_copyable_v<record>);

struct atomic_operands {
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
};

/// Of one request: its segments, and the message's trailer.
inline constexpr std::size_t max_far_pieces = max_segments + 1;

/// Where the memory of an offer lies.
struct offered_memory {
  std::uint64_t file_bytes = 0;
  std::uint64_t offset = 0;  ///< in the file, of the first byte that the key opens
};

/// Why an end has broken off.
enum class break_reason : std::uint16_t {
  aborted,          ///< its program wants no more
  access_refused,   ///< the other end has no right to what it has asked for
  protocol_broken,  ///< the other end has broken the rules
};

/// How much a record takes in the ring.
[[nodiscard]] constexpr std::size_t ring_bytes_of(std::size_t payload) noexcept {
  return (sizeof(record) + payload + cache_line - 1) & ~(cache_line - 1);
}

}  // namespace weft::net::shm

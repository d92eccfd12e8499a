// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/ring.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace weft::net::shm {

/// The kinds of records in a ring. A record is a header and then its payload, and begins at a multiple of a cache line.
/// It is contiguous: a record that does not fit before the end of the ring begins at the ring's beginning, behind a
/// `skip`.
///
/// Both ends run on one machine and speak one version, so numbers are in the machine's byte order. Nothing in a record
/// is trusted.
enum class record_kind : std::uint8_t {
  skip = 1,      ///< padding up to the end of the ring
  send,          ///< a message, or its first piece
  write,         ///< a write, or its first piece
  more,          ///< the next piece of a message or a write
  read,          ///< asks for bytes
  fetch_add,     ///< asks for a fetch_add; the payload is an atomic_operands
  compare_swap,  ///< asks for a compare_swap; the payload is an atomic_operands
  answer,        ///< a piece of the data for the oldest unanswered read
  value,         ///< the previous value of the word, for the oldest unanswered atomic operation
  offer,         ///< lends memory, whose file is in the socket, for direct access; the payload is an offered_memory
  taken,         ///< answers an `offer`
  withdrawn,     ///< ends a loan
  returned,      ///< answers a `withdrawn`: the sender has unmapped the memory
  fence,         ///< asks for a `fenced` once all earlier writes are in place
  fenced,        ///< answers a `fence`
  prove,         ///< asks whether the receiver can copy out of the sender's memory; the payload is a proof_word
  proven,        ///< answers a `prove`
  copied,        ///< answers the oldest unanswered `far` request: its payload has been copied
  finished,      ///< the sender has no further requests, and uses no loan; it only answers
  broken,        ///< the last record of a sender that breaks the connection; the payload is text
};

struct record {
  static constexpr std::uint8_t immediate = 0x02;    ///< in writes: `number` is immediate data
  static constexpr std::uint8_t invalidates = 0x04;  ///< in sends: `key` is a key of the receiver, to be revoked
  static constexpr std::uint8_t far = 0x08;          ///< in sends and writes: the payload lists far_pieces to copy from
  static constexpr std::uint8_t readable = 0x01;     ///< in offers, with `writable` and `atomic`: the key's rights
  static constexpr std::uint8_t writable = 0x02;
  static constexpr std::uint8_t atomic = 0x04;
  static constexpr std::uint8_t declined = 0x01;  ///< in taken: offer declined; in proven: the sender cannot copy

  record_kind kind = record_kind::skip;
  std::uint8_t flags = 0;
  std::uint16_t reason = 0;   ///< in broken: a break_reason
  std::uint32_t bytes = 0;    ///< length of the payload
  std::uint64_t total = 0;    ///< in sends, writes, reads and offers: the whole length in bytes
  std::uint64_t address = 0;  ///< in writes, reads, atomic operations and offers; in broken: the refused address
  std::uint32_t key = 0;      ///< the key of `address`; in sends: see `invalidates`
  std::uint32_t number = 0;   ///< immediate data; in broken: the refused request's number; for loans: the loan's number
};
static_assert(sizeof(record) == 32 && std::is_trivially_copyable_v<record>);

struct atomic_operands {
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
};

/// The longest message, write or read.
inline constexpr std::uint64_t largest_message = std::uint64_t{1} << 30;
/// A write up to this size is one record, so that no word of it is torn: capabilities::max_whole_write_bytes.
inline constexpr std::size_t whole_bytes = 8192;
/// The largest payload of a record.
inline constexpr std::size_t largest_piece = std::size_t{32} << 10;

/// The most far_pieces of one request: one for each segment, and one for the message's trailer.
inline constexpr std::size_t max_far_pieces = max_segments + 1;

/// Where the memory of an offer lies in its file.
struct offered_memory {
  std::uint64_t file_bytes = 0;
  std::uint64_t offset = 0;  ///< in the file, of the first byte that the key opens
};

/// Why an end has broken the connection.
enum class break_reason : std::uint16_t {
  aborted,          ///< the sender's program has aborted, or the sender cannot go on
  access_refused,   ///< the receiver had no right to an access that it asked for
  protocol_broken,  ///< the receiver has broken the rules of the protocol
};

/// How many bytes of the ring a record takes.
[[nodiscard]] constexpr std::size_t ring_bytes_of(std::size_t payload) noexcept {
  return (sizeof(record) + payload + cache_line - 1) & ~(cache_line - 1);
}

}  // namespace weft::net::shm

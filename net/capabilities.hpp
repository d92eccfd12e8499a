// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace weft::net {

/// What one connection can do, after negotiation. An operation that it cannot do fails before it is posted.
struct capabilities {
  bool native = false;           ///< weft on both ends: credits, and an orderly close distinct from a death
  bool orderly_close = false;    ///< recv() distinguishes the peer's close from its death
  bool checksum = false;         ///< the transport protects the payload beyond what the network does
  bool immediate = false;        ///< send_options::immediate
  bool write_immediate = false;  ///< write_options::immediate
  bool invalidate = false;       ///< send_options::invalidate
  bool explains_end = false;     ///< an end that aborts the connection tells the peer the reason
  bool heartbeats = false;       ///< the peer answers heartbeats: connection_options::heartbeat works
  bool resumes = false;          ///< both ends wait for a new link once all are lost: connection_options::resume_within
  bool device_memory = false;    ///< both ends copy device memory for the fabric: connection_options::device_memory
  bool persistent_flush = false;  ///< flush_type::persistent: both ends have set connection_options::persistent_flush
  bool device_flush = false;      ///< persistent flushes by the peer's device as well: docs/persistence.md
  bool device_atomic_write = false;  ///< a write of 8 bytes at a multiple of 8 is an ATOMIC WRITE: docs/persistence.md
  bool sees_writes = false;   ///< the fabric sees a peer's writes; else the writer notifies the owner of a counter
  bool same_machine = false;  ///< the peer is a process of this machine, reached by shared memory
  bool atomics = false;       ///< fetch_add and compare_swap
  std::uint16_t outgoing_reads = 0;  ///< reads that may be outstanding at the peer (ORD)
  std::uint16_t incoming_reads = 0;  ///< reads of the peer that may be outstanding here (IRD)
  /// The peer's own ORD, before the smaller one of both ends was taken (RFC 6581 section 9.1). Only over iWARP in user
  /// space, and only if the peer sent it, which the first revision of MPA cannot; otherwise empty.
  std::optional<std::uint16_t> peer_outgoing_reads{};
  /// The peer's own IRD, under the conditions of peer_outgoing_reads.
  std::optional<std::uint16_t> peer_incoming_reads{};
  std::uint64_t max_message_bytes = 0;       ///< the most bytes of one write or read, or of a send with weft's trailer
  std::uint32_t max_send_bytes = 0;          ///< the most bytes of one send: the peer's receive_size; 0 if not `native`
  std::uint8_t max_parts = 8;                ///< scatter/gather elements of a write; a send has one less
  std::uint8_t max_read_parts = 8;           ///< scatter/gather elements of a read
  bool write_completes_when_placed = false;  ///< a completed write is in place; if false, it may not be yet
  bool completes_on_answer = false;          ///< a completed send or write has reached the peer; if false, maybe not
  /// Words that threads of this end access during the peer's reads, or during its writes up to this size, are never
  /// torn: see mr/shared_words.hpp. 0: nothing is promised.
  std::uint64_t max_whole_write_bytes = 0;
};

}  // namespace weft::net

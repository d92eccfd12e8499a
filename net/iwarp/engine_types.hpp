// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/access_status.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/iwarp/words.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

// The operations, results and options of an iWARP engine, and what the engine asks of its connection.
namespace weft::net::iwarp {

enum class request_kind : std::uint8_t { send, send_with_invalidate, write, read, fetch_add, compare_swap };

[[nodiscard]] constexpr bool is_atomic(request_kind kind) noexcept {
  return kind == request_kind::fetch_add || kind == request_kind::compare_swap;
}

/// Whether the peer answers it: such requests share one queue and one limit.
[[nodiscard]] constexpr bool is_query(request_kind kind) noexcept {
  return kind == request_kind::read || is_atomic(kind);
}

/// What became of a request.
enum class completion_status : std::uint8_t {
  ok,                   ///< send and write: handed to TCP; read and atomics: all bytes placed
  flushed,              ///< the stream ended first; the peer may have executed it all the same
  remote_access_error,  ///< the peer terminated the stream over this one
  bystander,            ///< flushed: over an access by another STag, be it one that has completed
};

struct completion {
  completion_status status = completion_status::ok;
  std::uint64_t bytes = 0;  ///< of payload; 0 unless ok
};

/// One operation. The caller owns it, and `local` with the memory behind it, until its completion;
/// fill in the public part, then engine::post(). It may be reused after that.
class request {
 public:
  request_kind kind = request_kind::send;
  bool solicited = false;  ///< sends, and immediate data: the peer may raise an event
  /// Of a write: sent behind it as immediate data (RFC 7306 section 6), for which the peer needs a receive.
  std::optional<std::uint32_t> immediate;
  /// The source; of a read the sink; of atomics eight bytes for what was there before, in this machine's byte order.
  std::span<const iovec> local;
  std::uint32_t stag = 0;     ///< the peer's memory; send_with_invalidate: what to invalidate
  std::uint64_t offset = 0;   ///< where in it
  std::uint64_t operand = 0;  ///< atomics: what to add, or to put there
  std::uint64_t compare = 0;  ///< compare_swap: what has to be there

  request() noexcept = default;
  request(const request&) = delete;
  request& operator=(const request&) = delete;

 private:
  friend class engine;

  /// A place in `local`.
  struct cursor {
    std::size_t segment = 0;
    std::size_t offset = 0;
  };

  request* next_ = nullptr;       // in posting order
  request* next_read_ = nullptr;  // among reads and atomics that wait for their response
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;  // bytes gathered; of a read: placed
  std::uint64_t end_ = 0;   // where in the outgoing stream its last FPDU ends
  cursor at_;
  std::uint32_t sink_stag_ = 0;
  std::uint32_t sequence_ = 0;  // MSN
  bool started_ = false;        // some of it lies in a batch, or did
  bool gathered_ = false;       // all of it
  bool answered_ = false;       // reads and atomics: the response is complete
  bool blamed_ = false;         // the peer's Terminate names it
  bool bystander_ = false;      // it names another STag than this one's
};

/// A buffer for one message. The caller owns it and the memory until it is handed back; it may be reused after that.
class receive_request {
 public:
  std::span<std::byte> buffer;

  receive_request() noexcept = default;
  receive_request(const receive_request&) = delete;
  receive_request& operator=(const receive_request&) = delete;

 private:
  friend class engine;
  receive_request* next_ = nullptr;
};

struct received_info {
  std::size_t bytes = 0;
  bool solicited = false;
  std::optional<std::uint32_t> invalidated_stag{};
  std::optional<std::uint32_t> immediate{};  ///< all that came; there is nothing in the buffer then
};

enum class ending_reason : std::uint8_t {
  peer_closed,      ///< TCP's FIN, between messages, with nothing outstanding
  connection_lost,  ///< TCP ended in the middle of something
  terminated,       ///< by us: the peer broke a rule; `code` says which
  peer_terminated,  ///< by the peer; `code` says why
  aborted,          ///< by engine::abort()
};

/// Why a stream is over.
struct ending {
  ending_reason reason = ending_reason::aborted;
  std::optional<terminate_code> code{};
  words text{};  ///< "peer terminated the stream: remote protection error: invalid STag"
  /// Terminated by us: the peer used a key that this end has revoked, which it may not have known.
  bool late_access = false;
};

/// Where a peer's write goes; `memory` only if ok.
struct write_target {
  access_status status = access_status::invalid_stag;
  std::span<std::byte> memory{};
  bool may_shrink = false;  ///< it may be gone: to be written by copy_into(), and received elsewhere
};

/// What an engine needs of its connection. Called from inside the engine's functions, on the same thread.
/// completed(), received(), flushed() and ended() may call post(), post_receive() and abort(), but must not destroy the
/// engine; the accesses to memory call nothing of it.
class engine_host {
 public:
  /// Checks the key, the bounds, the right to write: where the bytes go, if they may. Never empty. The engine copies
  /// them at once, or has them received there: see engine::placement(). `memory` may be shorter, where the bytes behind
  /// it go elsewhere: the engine then asks for the rest.
  virtual write_target find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t bytes) noexcept = 0;
  /// All bytes of a peer's write are in their place.
  virtual void written([[maybe_unused]] std::uint32_t stag) noexcept {}
  /// Checks the key, the bounds, the right to read; then copies, by mr::load_shared(). Asked for every FPDU of a read
  /// response anew, so that a key that is revoked in the middle of one is noticed. Never empty.
  virtual access_status remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept = 0;
  /// May the peer read this range? Asked once per read request. Never empty.
  virtual access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t bytes) noexcept = 0;
  /// The same two for atomic operations, whose place must be aligned to eight bytes; asked only where they were agreed
  /// on. Each remote_atomic() is one operation in memory, atomic with all others on the same place.
  virtual access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept = 0;
  virtual access_status check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept = 0;
  /// Whether this end has revoked a key, lately and by itself: what a peer that uses it may not have known.
  [[nodiscard]] virtual bool was_revoked([[maybe_unused]] std::uint32_t stag) const noexcept { return false; }
  /// Revokes a key at the peer's wish; `access` if this one must not be.
  virtual access_status invalidate(std::uint32_t stag) noexcept = 0;

  /// Every posted request, exactly once, in posting order.
  virtual void completed(request& request, const completion& completion) noexcept = 0;
  /// A message lies in the buffer of the oldest receive.
  virtual void received(receive_request& receive, const received_info& info) noexcept = 0;
  /// A message begins and no receive is posted: one for it, or null to wait for post_receive(). For hosts whose
  /// receives are not this engine's alone.
  [[nodiscard]] virtual receive_request* take_receive() noexcept { return nullptr; }
  /// The stream ended before this receive was used. Every posted receive ends in one of the two, in posting order.
  virtual void flushed(receive_request& receive) noexcept = 0;
  /// The stream is over; once, and before anything is flushed.
  virtual void ended(const ending& ending) noexcept = 0;

 protected:
  ~engine_host() = default;  // an engine never owns its host
};

struct engine_options {
  bool initiator = true;         ///< a responder's output waits for the first FPDU (RFC 5044 section 7.1.2, rule 4)
  bool crc = true;               ///< parameters::crc
  bool signal_was_read = false;  ///< an initiator whose parameters::signal is a read: its response is due
  bool signal_is_send = false;   ///< a responder whose parameters::signal is a Send: the peer's first, if it is empty
  /// Switch between messages at any FPDU, not only at their ends: native peers take that, RFC 5041 does not allow it.
  bool interleave = false;
  std::size_t max_ulpdu = mpa::mulpdu(1460);  ///< of what we send; clamped to [min_mulpdu_bytes, max_ulpdu_bytes]
  bool atomics = false;                       ///< both sides have those of RFC 7306
  bool immediate = false;                     ///< and its immediate data
  std::uint32_t ird = 16;                     ///< incoming reads and atomics at a time; 72 bytes each; at least 1
  std::uint32_t ord = 16;                     ///< ours at a time; 0: post() refuses them
  std::uint32_t sink_stag_seed = 1;           ///< names our read sinks on the wire; random
  std::uint32_t first_sequence = 1;           ///< MSN; always 1 but for tests of its wrap
  /// The peer may end its direction and still take what it has asked for, and what we send (RFC 5041 section 6.2.1).
  /// Weft peers end theirs only once they want nothing more.
  bool half_close = false;
  /// An FPDU of which at least this much is still to come is placed as it comes: see engine::placement(). With CRCs
  /// that places bytes before their CRC is verified, which RFC 5044 section 6 does not allow: only if the user wants
  /// it. A write of no more payload never is, so that its words are whole to threads that load them (see
  /// mr/shared_words.hpp): the kernel copies packet by packet, and a packet may end in the middle of a word.
  std::size_t place_early_bytes = std::numeric_limits<std::size_t>::max();
};

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/slice.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/net/software/words.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

// The operations, results and options of an iWARP engine, and what the engine asks of its connection.
namespace weft::net::iwarp {

using software::access_status;
using software::words;

enum class request_kind : std::uint8_t { send, send_with_invalidate, write, read, fetch_add, compare_swap };

[[nodiscard]] constexpr bool is_atomic(request_kind kind) noexcept {
  return kind == request_kind::fetch_add || kind == request_kind::compare_swap;
}

/// Whether the peer answers requests of this kind. Such requests share one queue and one limit (ORD).
[[nodiscard]] constexpr bool is_query(request_kind kind) noexcept {
  return kind == request_kind::read || is_atomic(kind);
}

/// How a request has ended.
enum class completion_status : std::uint8_t {
  ok,                   ///< send and write: handed to TCP; read and atomics: all bytes placed
  flushed,              ///< the stream ended first; the peer may have executed it all the same
  remote_access_error,  ///< the peer terminated the stream because of this request
  bystander,            ///< flushed, because the peer refused an access by another STag
};

struct completion {
  completion_status status = completion_status::ok;
  std::uint64_t bytes = 0;  ///< of payload; 0 unless ok
};

/// One operation. Fill in the public part, then call engine::post(). The caller owns the object, and must keep it and
/// the memory that it names until the completion; then it may be reused.
class request {
 public:
  request_kind kind = request_kind::send;
  /// Immediate data that follows a write (RFC 7306 section 6). The peer needs a receive for it.
  std::optional<std::uint32_t> immediate;
  /// The source, or the sink of a read: these segments, and the tail behind them. Atomics have only a tail of eight
  /// bytes, which receives the previous value in this machine's byte order.
  std::span<const mr::slice> local;
  std::span<std::byte> tail;
  std::uint32_t stag = 0;     ///< names the peer's memory; send_with_invalidate: the STag to invalidate
  std::uint64_t offset = 0;   ///< in that memory
  std::uint64_t operand = 0;  ///< atomics: the value to add, or to store
  std::uint64_t compare = 0;  ///< compare_swap: the value that is expected there

  request() noexcept = default;
  request(const request&) = delete;
  request& operator=(const request&) = delete;

 private:
  friend class engine;

  /// A position in `local`, or behind its end in `tail`.
  struct cursor {
    std::size_t segment = 0;
    std::size_t offset = 0;
  };

  request* next_ = nullptr;       // in posting order
  request* next_read_ = nullptr;  // among reads and atomics that wait for their response
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;  // bytes gathered; for a read, bytes placed
  std::uint64_t end_ = 0;   // position in the outgoing stream at which its last FPDU ends
  cursor at_;
  std::uint32_t sink_stag_ = 0;
  std::uint32_t sequence_ = 0;  // MSN
  bool started_ = false;        // at least a part has been gathered
  bool gathered_ = false;       // all of it has been gathered
  bool answered_ = false;       // reads and atomics: the response is complete
  bool blamed_ = false;         // the peer's Terminate names this request
  bool bystander_ = false;      // the peer's Terminate names an STag other than this request's
};

/// A buffer for one message. The caller owns the object, and must keep it and the memory until engine_host::received()
/// or flushed(); then it may be reused.
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
  std::optional<std::uint32_t> invalidated_stag{};
  std::optional<std::uint32_t> immediate{};  ///< if set, it is the whole message, and the buffer is unused
  /// The message where it lies in the bytes that consume() was given; the buffer is then unused. Empty if the message
  /// is in the buffer. Valid during received().
  std::span<const std::byte> in_place{};
};

enum class ending_reason : std::uint8_t {
  peer_closed,      ///< TCP's FIN, between messages, with nothing outstanding; with half_close, both FINs
  connection_lost,  ///< TCP's FIN within a message, or with operations outstanding; or a read or atomic after it
  terminated,       ///< by us: the peer broke a rule; `code` says which
  peer_terminated,  ///< by the peer; `code` says why
  aborted,          ///< by engine::abort() or engine::abandon()
};

/// Why a stream has ended.
struct ending {
  ending_reason reason = ending_reason::aborted;
  std::optional<terminate_code> code{};
  words text{};  ///< "peer terminated the stream: remote protection error: invalid STag"
  /// This end terminated the stream, because the peer used a revoked key, perhaps before it knew of the revocation.
  bool late_access = false;
  std::optional<std::uint32_t> refused_stag{};  ///< the STag of a refused access, if known
};

/// The destination of a peer's write; `memory` is valid only if the status is ok.
struct write_target {
  access_status status = access_status::invalid_stag;
  std::span<std::byte> memory{};
  bool may_shrink = false;  ///< the memory may vanish: write it by copy_into(), and receive nothing into it directly
  bool words = false;       ///< for copy_into()
};

/// The connection of an engine. The engine calls it from inside its own functions, on the same thread. completed(),
/// received(), flushed(), input_over() and ended() may call post(), post_receive(), abort() and refuse(), but must not
/// destroy the engine. The functions that access memory must not call the engine.
class engine_host {
 public:
  /// Checks the key, the bounds and the right to write, and finds the place for the bytes. `bytes` is never zero. The
  /// engine copies the payload there at once, or has it received there: see engine::placement(). The place may be
  /// shorter than `bytes` if the memory is not contiguous; the engine then asks for the rest.
  virtual write_target find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t bytes) noexcept = 0;
  /// All bytes of a peer's Write message are in their place. `stag` is unchecked if the message is empty.
  virtual void written([[maybe_unused]] std::uint32_t stag) noexcept {}
  /// Checks the key, the bounds and the right to read, then copies: as mr::load_shared() does, or by the kernel if the
  /// memory may shrink. Called for every FPDU of a read response, so that a key that is revoked during the response is
  /// noticed. `out` is never empty.
  virtual access_status remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept = 0;
  /// Whether the peer may read this range. Called once for each read request. `bytes` is never zero.
  virtual access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t bytes) noexcept = 0;
  /// Checks the key, the bounds, the right to atomic operations, and that the address is aligned to eight bytes; then
  /// executes the operation atomically with all others on the same address. Called only if both ends have agreed on
  /// atomic operations.
  virtual access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept = 0;
  /// Whether the peer may change these eight bytes. Called once for each atomic request.
  virtual access_status check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept = 0;
  /// Whether this end, not the peer, has recently revoked the key: a peer that uses it may not know.
  [[nodiscard]] virtual bool was_revoked([[maybe_unused]] std::uint32_t stag) const noexcept { return false; }
  /// Revokes a key because the peer asks for it; access_status::access if the peer may not revoke this key.
  virtual access_status invalidate(std::uint32_t stag) noexcept = 0;

  /// A request has ended. Called exactly once for each request that was posted, in their order.
  virtual void completed(request& request, const completion& completion) noexcept = 0;
  /// A message has arrived for the oldest receive, and is in the receive's buffer unless `info` says otherwise.
  virtual void received(receive_request& receive, const received_info& info) noexcept = 0;
  /// Called when a message begins and no receive is posted. Returns a receive for it, or null: the message then waits
  /// for post_receive(). For hosts that share receives between engines.
  [[nodiscard]] virtual receive_request* take_receive() noexcept { return nullptr; }
  /// The stream ended before this receive was used. Each posted receive ends by received() or by flushed(), in posting
  /// order.
  virtual void flushed(receive_request& receive) noexcept = 0;
  /// The peer has closed its direction between messages, and still receives (half_close). At most once, before ended().
  virtual void input_over() noexcept {}
  /// The stream has ended. Called once, before anything is flushed.
  virtual void ended(const ending& ending) noexcept = 0;

 protected:
  ~engine_host() = default;  // an engine never owns its host
};

struct engine_options {
  bool initiator = true;         ///< a responder's output waits for the first FPDU (RFC 5044 section 7.1.2, rule 4)
  bool crc = true;               ///< parameters::crc
  bool signal_was_read = false;  ///< initiator: parameters::signal is a read, whose response is still to come
  bool signal_is_send = false;   ///< responder: an empty first Send is the ready signal (parameters::signal)
  /// Switch between messages at any FPDU, not only at their ends. Native peers accept that; RFC 5041 does not allow it.
  bool interleave = false;
  std::size_t max_ulpdu = mpa::mulpdu(1460);  ///< of what we send; clamped to [min_mulpdu_bytes, max_ulpdu_bytes]
  bool atomics = false;                       ///< both sides have the atomic operations of RFC 7306
  bool immediate = false;                     ///< both sides have the immediate data of RFC 7306
  std::uint32_t ird = 16;            ///< the most incoming reads and atomics, of 72 bytes of memory each; 0 counts as 1
  std::uint32_t ord = 16;            ///< the most outgoing reads and atomics; 0: post() refuses them
  std::uint32_t sink_stag_seed = 1;  ///< STag of the sink of our first read, then counted up; draw it at random
  std::uint32_t first_sequence = 1;  ///< MSN of the first message; 1 except in tests of its wrap
  /// The peer's FIN closes its direction only (RFC 5041 section 6.2.1): engine_host::input_over(). Until
  /// engine::end_of_output(), the peer's requests are answered, and ours except reads and atomics are sent. Weft peers
  /// send their FIN only once they want nothing more.
  bool half_close = false;
  bool in_place = false;  ///< received_info::in_place may be used
  /// An FPDU is placed as it arrives if at least this much of it is still to come: see engine::placement(). With CRCs
  /// this places bytes before their CRC is verified, which RFC 5044 section 6 does not allow, so only the user may ask
  /// for it. A write with no more payload than this is never placed early, because the kernel copies packet by packet,
  /// and a packet may end within a word. So threads that load its words see them whole (mr/shared_words.hpp).
  std::size_t place_early_bytes = std::numeric_limits<std::size_t>::max();
};

}  // namespace weft::net::iwarp

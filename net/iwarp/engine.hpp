// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/access_status.hpp>
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/output_batch.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/iwarp/words.hpp>

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <variant>

// One established iWARP stream without I/O: bytes in, bytes out.
// See RFC 5040 (RDMAP), RFC 5041 (DDP) and RFC 5044 (MPA).
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
  [[nodiscard]] virtual bool was_revoked([[maybe_unused]] std::uint32_t stag) noexcept { return false; }
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

/// The protocol machine of one stream. Allocates in its constructor only.
///
/// Input: whenever TCP has delivered something, hand the unconsumed bytes to consume(), which takes whole FPDUs; keep
/// the rest in a staging area of at least mpa::max_fpdu_bytes. While needs_receive(), it takes nothing: stop reading
/// and try again after post_receive(). On FIN, end_of_stream().
///
/// Large payloads need not pass through that area. While placement() is not empty, the next bytes of the stream may be
/// received there, to be reported with placed(); what comes behind them is for consume() again.
///
/// Output: while has_output() and no batch is out, gather() into one, hand its pending() to sendmsg(2) and report with
/// sent() what was taken, until it is empty. Once it was given to gather() a batch belongs to this engine until then.
/// The memory behind it may be in the kernel's hands: whatever happens to the stream, requests in it do not complete
/// before sent() or abandon().
///
/// The end: ended() reports it. consume() then swallows everything; output, if any, is what is left in the batch and
/// one Terminate; when finished(), close TCP.
class engine {
 public:
  static constexpr std::uint64_t max_message_bytes = std::numeric_limits<std::uint32_t>::max();

  /// Throws std::bad_alloc. The host outlives the engine.
  engine(engine_host& host, const engine_options& options);
  ~engine();  // asserts that nothing is posted any more

  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  /// Queues a request. On an ended stream it completes as flushed, maybe from inside this call.
  /// False, and nothing happens, if it is longer than max_message_bytes, a read or an atomic while ORD is 0, an atomic
  /// or immediate data that was not agreed on, immediate data of anything but a write, or an atomic whose `local` is
  /// not one segment of eight bytes.
  [[nodiscard]] bool post(request& request) noexcept;
  void post_receive(receive_request& receive) noexcept;

  /// Handles whole FPDUs off the front of `bytes`; returns the bytes that they took. Starts no FPDU after
  /// `budget_bytes`, so that other connections get their turn; if more than a part of one is left then, call again.
  std::size_t consume(std::span<const std::byte> bytes,
                      std::size_t budget_bytes = std::numeric_limits<std::size_t>::max()) noexcept;

  /// Where the next bytes go that TCP delivers behind those that consume() has taken: memory of a region, a read or a
  /// receive, checked as they will be. Empty where they are for consume(); they may go there in any case.
  /// Good for one receive, which must not outlast this thread's hold on the key that allows it.
  [[nodiscard]] std::span<std::byte> placement() noexcept;
  /// TCP has delivered `bytes` into the placement() asked for last.
  void placed(std::size_t bytes) noexcept;

  /// A message has arrived for which no receive is posted.
  [[nodiscard]] bool needs_receive() const noexcept { return needs_receive_; }

  /// TCP has delivered its last byte, and consume() left `unconsumed_bytes` of what came before it. Messages that
  /// wait for a receive are among those: report the end only after them.
  void end_of_stream(std::size_t unconsumed_bytes) noexcept;

  /// Ends the stream without another byte: `why` in words. Does nothing on one that has ended.
  void abort(const words& why) noexcept;
  /// Ends it because the peer has broken the rules of what stands on the stream, and tells it so.
  void refuse(terminate_code code, const words& why) noexcept;

  /// From now on no ULPDU of ours is larger: TCP's segments have become smaller, or larger.
  void limit_ulpdu(std::size_t bytes) noexcept {
    max_ulpdu_ = std::clamp(bytes, mpa::min_mulpdu_bytes, mpa::max_ulpdu_bytes);
  }

  /// Something to gather.
  [[nodiscard]] bool has_output() const noexcept {
    return open_ ? is_ready(lane::requests) || is_ready(lane::responses) : terminate_due_;
  }
  /// Fills an empty batch with FPDUs; false if there was none. Only when all that was gathered is sent.
  bool gather(output_batch& batch) noexcept;
  /// `bytes` off the front of the batch are TCP's.
  void sent(output_batch& batch, std::size_t bytes) noexcept;
  /// No more of the batch will be sent and the kernel is done with it. Aborts a stream that has not ended.
  void abandon(output_batch& batch) noexcept;

  [[nodiscard]] bool is_open() const noexcept { return open_; }
  /// The stream has ended, and all there was to say about it is sent.
  [[nodiscard]] bool finished() const noexcept { return !open_ && !has_output() && gathered_ == sent_; }

  /// Requests posted and not completed.
  [[nodiscard]] bool has_requests() const noexcept { return first_request_ != nullptr; }
  /// Reads and atomics whose response is not complete, the set-up's ready signal included.
  [[nodiscard]] std::uint32_t reads_in_flight() const noexcept { return reads_in_flight_; }

 private:
  /// What the peer waits for. A read is advanced as its response is gathered; an atomic is executed then, in its turn.
  struct incoming_request {
    std::uint32_t sequence = 0;
    std::variant<read_request, atomic_request> asked;
  };

  /// A large segment whose header has been taken and approved, and whose payload is placed as it comes.
  struct early_segment {
    std::array<std::byte, untagged_header::bytes> header;  // as it came; a tagged one is shorter
    std::size_t header_bytes = 0;
    std::size_t ulpdu_bytes = 0;
    std::size_t payload_left = 0;
    std::size_t trailer_left = 0;  // pad and CRC; 0: there is no such segment
    std::size_t trailer_bytes = 0;
    std::array<std::byte, 3 + mpa::crc_bytes> trailer;
    std::byte* placement = nullptr;  // the last that was asked for
    crc32c crc;

    [[nodiscard]] bool is_tagged() const noexcept { return header_bytes == tagged_header::bytes; }
    [[nodiscard]] std::span<const std::byte> front() const noexcept { return std::span(header).first(header_bytes); }
    [[nodiscard]] std::size_t payload_bytes() const noexcept { return ulpdu_bytes - header_bytes; }
    [[nodiscard]] std::size_t payload_done() const noexcept { return payload_bytes() - payload_left; }
  };

  // The outgoing stream is shared by what is posted here and by the responses that the peer waits for.
  enum class lane : std::uint8_t { requests, responses };

  // Input. What takes a ULPDU returns false only where its message waits for a receive.
  bool handle_fpdu(std::span<const std::byte> fpdu, std::size_t ulpdu_bytes) noexcept;
  bool check_crc(const std::byte* field, std::uint32_t computed, std::size_t fpdu_bytes) noexcept;
  bool handle_ulpdu(std::span<const std::byte> ulpdu) noexcept;
  void handle_tagged(std::span<const std::byte> ulpdu) noexcept;
  bool handle_untagged(std::span<const std::byte> ulpdu) noexcept;
  void handle_write(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  [[nodiscard]] access_status write(std::uint32_t stag, std::uint64_t offset,
                                    std::span<const std::byte> payload) noexcept;
  void handle_read_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_ready_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  bool handle_send(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  [[nodiscard]] bool has_receive() noexcept;
  void deliver(const untagged_header& header, std::span<const std::byte> front, std::size_t ulpdu_bytes) noexcept;
  void handle_read_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_atomic_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_atomic_response(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  bool check_message(const untagged_header& header, std::span<const std::byte> ulpdu, std::size_t body_bytes,
                     std::uint32_t sequence) noexcept;
  bool check_request(const untagged_header& header, std::span<const std::byte> ulpdu, std::size_t body_bytes) noexcept;
  void accept(const incoming_request& incoming) noexcept;
  void read_answered() noexcept;
  [[nodiscard]] std::optional<std::uint32_t> queue_of(opcode op) const noexcept;
  void handle_terminate(std::span<const std::byte> ulpdu) noexcept;
  void fill_read(request& read, std::span<const std::byte> payload) noexcept;
  void finish_read_response(bool last) noexcept;

  // Segments that are placed as they come.
  [[nodiscard]] bool may_place_early(std::span<const std::byte> front, std::size_t ulpdu_bytes) noexcept;
  [[nodiscard]] bool is_next_response(const tagged_header& header, std::size_t payload_bytes) const noexcept;
  [[nodiscard]] bool is_next_segment(const untagged_header& header, std::size_t payload_bytes) noexcept;
  std::size_t begin_early(std::span<const std::byte> bytes, std::size_t ulpdu_bytes) noexcept;
  std::size_t continue_early(std::span<const std::byte> bytes) noexcept;
  void place_early(std::span<const std::byte> payload) noexcept;
  void advance_early(std::size_t bytes) noexcept;
  void finish_early() noexcept;
  void refuse_early_write(access_status status) noexcept;
  [[nodiscard]] bool names(const terminate_message& message, const request& request) const noexcept;
  struct refused_place;
  [[nodiscard]] std::optional<refused_place> place_of(const terminate_message& message) const noexcept;
  [[nodiscard]] words refusal(const char* verb, std::uint64_t bytes, std::uint32_t stag, std::uint64_t offset,
                              access_status status) noexcept;

  // Output. Each gathers one FPDU; false if there is none, or no room for it.
  bool gather_fpdu(output_batch& batch) noexcept;
  void gather_message(output_batch& batch) noexcept;
  void gather_immediate(output_batch& batch) noexcept;
  void gather_query(output_batch& batch) noexcept;
  void gather_whole(output_batch& batch, std::span<const std::byte> ulpdu) noexcept;
  bool gather_response(output_batch& batch) noexcept;
  bool gather_read_response(output_batch& batch, std::uint32_t sequence, read_request& read) noexcept;
  void gather_atomic_response(output_batch& batch, std::uint32_t sequence, const atomic_request& asked) noexcept;
  void pop_incoming() noexcept;
  bool gather_terminate(output_batch& batch) noexcept;
  std::size_t gather_payload(output_batch& batch, request& request, std::size_t limit) noexcept;
  std::size_t gather_pieces(output_batch& batch, request& request, std::size_t limit) noexcept;
  void finish_gathering(request& request) noexcept;
  [[nodiscard]] bool waits_for_an_answer() const noexcept;
  void end_if_nothing_is_owed() noexcept;
  void seal(output_batch& batch, const output_batch::mark& start, std::size_t ulpdu_bytes) noexcept;
  [[nodiscard]] bool is_ready(lane which) const noexcept {
    if (which == lane::responses) return incoming_count_ != 0;
    if (next_ == nullptr || !(initiator_ || heard_)) return false;
    return !is_query(next_->kind) || reads_in_flight_ < ord_;
  }
  [[nodiscard]] bool choose_lane() noexcept;

  // The end.
  void terminate(terminate_code code, std::span<const std::byte> ulpdu, const words& why,
                 const std::optional<read_request>& read = std::nullopt, std::size_t ulpdu_bytes = 0) noexcept;
  void terminate_response(std::uint32_t sequence, const read_request& left, access_status status) noexcept;
  void terminate_atomic(std::span<const std::byte> ulpdu, const atomic_request& asked, access_status status) noexcept;
  void end(ending_reason reason, std::optional<terminate_code> code, const words& why) noexcept;
  void flush() noexcept;
  [[nodiscard]] bool is_released(const request& request) const noexcept;
  void retire() noexcept;
  void complete_first(const completion& completion) noexcept;

  engine_host& host_;
  const bool initiator_;
  const bool crc_;
  const bool interleave_;
  const bool atomics_;
  const bool immediate_;
  const bool half_close_;
  std::size_t max_ulpdu_ = 0;
  const std::uint32_t ird_;
  const std::uint32_t ord_;
  const std::size_t place_early_bytes_;

  bool open_ = true;
  bool heard_ = false;          // the peer's first FPDU is in: a responder may speak
  bool input_over_ = false;     // the peer has ended its direction, and is owed something
  bool needs_receive_ = false;  // consume() stands before a message that nobody takes yet
  bool terminate_due_ = false;  // terminate_ is to be sent
  bool late_access_ = false;    // what it is about: ending::late_access
  terminate_message terminate_;

  // Requests in posting order; next_ is the first that is not gathered completely. Reads and atomics among them that
  // wait.
  request* first_request_ = nullptr;
  request* last_request_ = nullptr;
  request* next_ = nullptr;
  request* first_read_ = nullptr;
  request* last_read_ = nullptr;
  std::uint32_t reads_in_flight_ = 0;
  bool ready_response_due_ = false;  // ahead of the reads' own
  bool ready_send_due_;              // ahead of the peer's messages
  std::uint32_t next_sink_stag_;
  std::uint32_t next_send_sequence_;
  std::uint32_t next_read_sequence_;             // atomics included
  std::uint32_t next_atomic_response_sequence_;  // of those that we answer

  // The outgoing stream, in bytes: what went into batches, and what of that TCP has.
  std::uint64_t gathered_ = 0;
  std::uint64_t sent_ = 0;
  lane lane_ = lane::requests;
  std::size_t lane_bytes_left_;  // before the other lane has its turn
  bool in_message_ = false;      // the lane's last FPDU did not end its message

  // Messages that come in.
  receive_request* first_receive_ = nullptr;
  receive_request* last_receive_ = nullptr;
  std::uint32_t expected_send_;
  std::uint32_t expected_read_;  // atomics included
  std::uint32_t expected_atomic_response_;
  std::size_t message_bytes_ = 0;  // of the one in first_receive_
  bool message_begun_ = false;
  bool write_begun_ = false;
  opcode message_opcode_ = opcode::send;
  early_segment early_;

  // A ring of at most ird_ reads and atomics.
  std::unique_ptr<incoming_request[]> incoming_;
  std::uint32_t first_incoming_ = 0;
  std::uint32_t incoming_count_ = 0;
};

}  // namespace weft::net::iwarp

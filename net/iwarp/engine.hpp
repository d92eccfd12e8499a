// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/early_segment.hpp>
#include <weft/net/iwarp/engine_types.hpp>
#include <weft/net/iwarp/incoming_requests.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/output_batch.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/link/linked_queue.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/net/software/words.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

// One established iWARP stream without I/O: bytes in, bytes out.
// See RFC 5040 (RDMAP), RFC 5041 (DDP) and RFC 5044 (MPA).
namespace weft::net::iwarp {

using software::access_status;
using software::words;

/// The protocol machine of one stream. Allocates in its constructor only.
///
/// Input: whenever TCP has delivered something, hand the unconsumed bytes to consume(), which takes whole FPDUs; keep
/// the rest in a staging area of at least mpa::max_fpdu_bytes. While needs_receive(), it takes nothing: stop reading
/// and try again after post_receive(). After the peer's FIN, call end_of_stream(); after our own, end_of_output().
///
/// Large payloads need not pass through that area. While placement() is not empty, the next bytes of the stream may be
/// received there, and are reported with placed(); the bytes behind them are for consume() again.
///
/// Output: while has_output() and no batch is in use, gather() into one, hand its pending() to sendmsg(2), and report
/// with sent() how much was taken, until the batch is empty. From gather() or take_now() until then the batch belongs
/// to this engine. The kernel may be using the memory behind the batch: whatever happens to the stream, requests in the
/// batch do not complete before sent() or abandon().
///
/// The end: engine_host::ended() reports it. Afterwards consume() discards everything, and the output is what is left
/// in the batch, and at most one Terminate. When finished(), close TCP.
///
/// Its sources: engine.cpp (requests and receives, from post() to their completion), engine_receive.cpp (FPDUs that
/// arrive whole), engine_early.cpp (segments that are placed as they arrive), engine_transmit.cpp, and
/// engine_terminate.cpp (the end, whoever causes it).
class engine {
 public:
  /// A piece of payload up to this size is always copied, which costs less than one more segment in the sendmsg(2).
  static constexpr std::size_t inline_bytes = 256;
  static constexpr std::uint64_t max_message_bytes = std::numeric_limits<std::uint32_t>::max();

  /// Throws std::bad_alloc. The host must outlive the engine.
  engine(engine_host& host, const engine_options& options);
  ~engine();  // asserts that nothing is posted any more

  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  /// Queues a request. On a stream that has ended it completes as flushed, perhaps from inside this call. A read or an
  /// atomic that is posted after the peer's FIN ends the stream.
  ///
  /// Returns false and does nothing if the request is longer than max_message_bytes; if it is a read or an atomic while
  /// ORD is 0; if it is an atomic or has immediate data, without an agreement on these; if it has immediate data and is
  /// no write; or if it is an atomic with segments, or with a tail of other than eight bytes.
  [[nodiscard]] bool post(request& request) noexcept;
  void post_receive(receive_request& receive) noexcept;

  /// Handles whole FPDUs at the front of `bytes`, and what has arrived of a large one; returns how many bytes it has
  /// taken. Starts no FPDU after `budget_bytes`, so that other connections get their turn; if more than a part of an
  /// FPDU is left then, call again.
  std::size_t consume(std::span<const std::byte> bytes,
                      std::size_t budget_bytes = std::numeric_limits<std::size_t>::max()) noexcept;

  /// Returns the memory for the next bytes that TCP delivers, behind those that consume() has taken: a checked part of
  /// a region, a read or a receive. Empty if consume() has to take these bytes, as it always may. Valid for one
  /// recvmsg(2), inside the key_table::reader::batch in which placement() was called. Ends the stream if the peer may
  /// no longer write to the region.
  [[nodiscard]] std::span<std::byte> placement() noexcept;
  /// Whether placement() may yield memory.
  [[nodiscard]] bool may_place() const noexcept { return early_.payload_left() != 0; }
  /// Reports that TCP has delivered `bytes` into the last placement().
  void placed(std::size_t bytes) noexcept;

  /// Whether a message has arrived for which no receive is posted.
  [[nodiscard]] bool needs_receive() const noexcept { return needs_receive_; }

  /// Reports the peer's FIN; consume() has left `unconsumed_bytes`. Call only when no message waits for a receive,
  /// because such a message is among the unconsumed bytes.
  void end_of_stream(std::size_t unconsumed_bytes) noexcept;
  /// Reports that this end's FIN is sent, behind all of its output. Ends a stream that stayed open after the peer's
  /// FIN: engine_options::half_close.
  void end_of_output() noexcept;

  /// Ends the stream without a Terminate; `why` becomes ending::text. Does nothing on a stream that has ended.
  void abort(const words& why) noexcept;
  /// Ends the stream with a Terminate to the peer, which has broken a rule of the protocol above. From inside
  /// engine_host::received() the Terminate carries the header of that message. Does nothing on a stream that has ended.
  void refuse(terminate_code code, const words& why) noexcept;

  /// Limits outgoing ULPDUs to `bytes` from now on. Called when the size of TCP's segments may have changed.
  void limit_ulpdu(std::size_t bytes) noexcept {
    max_ulpdu_ = std::clamp(bytes, mpa::min_mulpdu_bytes, mpa::max_ulpdu_bytes);
  }

  /// Whether there is something to gather.
  [[nodiscard]] bool has_output() const noexcept {
    return open_ ? is_ready(lane::requests) || is_ready(lane::responses) : terminate_due_;
  }
  /// Whether take_now() may add a send, or a write without immediate data, of `bytes` to `batch`, which is the batch
  /// gathered last, or null for a new one.
  [[nodiscard]] bool may_take_now(const output_batch* batch, std::size_t bytes) const noexcept;
  /// Copies a small request to the end of the batch, behind all that was posted. The request has no completion, and is
  /// not needed after the call.
  void take_now(output_batch& batch, request& item) noexcept;
  /// Fills an empty batch with FPDUs; false if there were none. Call only when everything that was gathered is sent.
  bool gather(output_batch& batch) noexcept;
  /// Reports that TCP has taken `bytes` off the front of the batch.
  void sent(output_batch& batch, std::size_t bytes) noexcept;
  /// Discards the rest of the batch, which the kernel must no longer use. Aborts a stream that has not ended.
  void abandon(output_batch& batch) noexcept;

  [[nodiscard]] bool is_open() const noexcept { return open_; }
  /// Whether the stream has ended and all of its output is sent.
  [[nodiscard]] bool finished() const noexcept { return !open_ && !has_output() && gathered_ == sent_; }

  /// Whether responses to the peer are due, so gather() may have the host read or change memory.
  [[nodiscard]] bool owes_responses() const noexcept { return !incoming_.empty(); }
  /// Whether there are requests that have not completed.
  [[nodiscard]] bool has_requests() const noexcept { return !requests_.empty(); }
  /// The number of reads and atomics that were gathered and whose response is not complete, including a ready signal
  /// that was a read.
  [[nodiscard]] std::uint32_t reads_in_flight() const noexcept { return reads_in_flight_; }

 private:
  // The outgoing stream carries the requests of this end and the responses that the peer waits for.
  enum class lane : std::uint8_t { requests, responses };
  static constexpr std::size_t fair_share_bytes = 65'536;  // for one lane before the other has its turn

  // engine.cpp: requests and receives.
  void finish_query() noexcept;
  [[nodiscard]] bool is_released(const request& request) const noexcept;
  void retire() noexcept;
  void complete_first(const completion& completion) noexcept;
  void flush() noexcept;

  // engine_receive.cpp: FPDUs that arrive whole. A bool handle_...() returns false only if its message waits for a
  // receive. A require_...() ends the stream unless its condition holds, and returns whether it holds.
  bool handle_fpdu(std::span<const std::byte> fpdu, std::size_t ulpdu_bytes) noexcept;
  bool require_crc(const std::byte* field, std::uint32_t computed, std::size_t fpdu_bytes) noexcept;
  bool handle_ulpdu(std::span<const std::byte> ulpdu) noexcept;
  void handle_tagged(std::span<const std::byte> ulpdu) noexcept;
  [[nodiscard]] std::optional<std::uint32_t> queue_of(opcode op) const noexcept;
  bool handle_untagged(std::span<const std::byte> ulpdu) noexcept;
  void handle_write(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  [[nodiscard]] access_status write(std::uint32_t stag, std::uint64_t offset,
                                    std::span<const std::byte> payload) noexcept;
  void handle_ready_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_read_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void fill_read(request& read, std::span<const std::byte> payload) noexcept;
  bool handle_send(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  /// Asks the host for a receive if none is posted; false if the host has none.
  [[nodiscard]] bool take_receive() noexcept;
  void deliver(const untagged_header& header, std::span<const std::byte> front, std::size_t ulpdu_bytes,
               std::span<const std::byte> in_place = {}) noexcept;
  /// Checks a message of one FPDU and a fixed length.
  bool require_message(const untagged_header& header, std::span<const std::byte> ulpdu, std::size_t body_bytes,
                       std::uint32_t sequence) noexcept;
  bool require_request(const untagged_header& header, std::span<const std::byte> ulpdu,
                       std::size_t body_bytes) noexcept;
  void accept(const incoming_request& incoming) noexcept;
  void handle_read_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_atomic_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;
  void handle_atomic_response(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept;

  // engine_early.cpp: segments that are placed as they arrive.
  [[nodiscard]] bool is_next_response(const tagged_header& header, std::size_t payload_bytes) const noexcept;
  [[nodiscard]] bool is_next_segment(const untagged_header& header) const noexcept;
  [[nodiscard]] bool may_place_early(std::span<const std::byte> front, std::size_t ulpdu_bytes) const noexcept;
  std::size_t begin_early(std::span<const std::byte> bytes, std::size_t ulpdu_bytes) noexcept;
  std::size_t continue_early(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] access_status place_early(std::span<const std::byte> payload) noexcept;
  void finish_early() noexcept;
  void refuse_early_write(access_status status) noexcept;

  // engine_transmit.cpp: output. A bool gather_...() returns false if there is no FPDU to gather, or no room for it.
  [[nodiscard]] bool is_ready(lane which) const noexcept {
    if (which == lane::responses) return !incoming_.empty();
    if (next_ == nullptr || !(initiator_ || heard_)) return false;
    return !is_query(next_->kind) || reads_in_flight_ < ord_;
  }
  void take_turns() noexcept;
  bool gather_fpdu(output_batch& batch) noexcept;
  void gather_message(output_batch& batch) noexcept;
  void gather_small(output_batch& batch, request& request, opcode op) noexcept;
  void pack_small(output_batch& batch, const request& request, opcode op) noexcept;
  void gather_immediate(output_batch& batch) noexcept;
  std::size_t gather_payload(output_batch& batch, request& request, std::size_t limit) noexcept;
  std::size_t gather_pieces(output_batch& batch, request& request, std::size_t limit) noexcept;
  void gather_query(output_batch& batch) noexcept;
  void gather_whole(output_batch& batch, std::span<const std::byte> ulpdu) noexcept;
  void finish_gathering(request& request) noexcept;
  bool gather_response(output_batch& batch) noexcept;
  void gather_atomic_response(output_batch& batch, std::uint32_t sequence, const atomic_request& asked) noexcept;
  bool gather_read_response(output_batch& batch, std::uint32_t sequence, read_request& read) noexcept;
  bool gather_terminate(output_batch& batch) noexcept;
  void seal(output_batch& batch, const output_batch::mark& start, std::size_t ulpdu_bytes) noexcept;
  void count_gathered(std::size_t bytes) noexcept;

  // engine_terminate.cpp: the end. `ulpdu_bytes` is the length of the refused segment if `ulpdu` has only its front.
  struct refused_place;
  void handle_terminate(std::span<const std::byte> ulpdu) noexcept;
  [[nodiscard]] std::optional<refused_place> place_of(const terminate_message& message) const noexcept;
  [[nodiscard]] bool names(const terminate_message& message, const request& request) const noexcept;
  void note_refusal(std::uint32_t stag, access_status status) noexcept;
  void refuse_write(std::span<const std::byte> ulpdu, std::size_t payload_bytes, const tagged_header& header,
                    access_status status, std::size_t ulpdu_bytes = 0) noexcept;
  void refuse_read(std::span<const std::byte> ulpdu, const read_request& read, access_status status) noexcept;
  void refuse_atomic(std::span<const std::byte> ulpdu, const atomic_request& asked, access_status status) noexcept;
  void refuse_invalidation(std::span<const std::byte> ulpdu, std::size_t ulpdu_bytes, std::uint32_t stag,
                           access_status status) noexcept;
  void terminate(terminate_code code, std::span<const std::byte> ulpdu, const words& why,
                 const std::optional<read_request>& read = std::nullopt, std::size_t ulpdu_bytes = 0) noexcept;
  [[nodiscard]] bool waits_for_an_answer() const noexcept;
  void end(ending_reason reason, std::optional<terminate_code> code, const words& why) noexcept;

  engine_host& host_;
  const bool initiator_;
  const bool crc_;
  const bool interleave_;
  const bool atomics_;
  const bool immediate_;
  const bool half_close_;
  const bool in_place_;
  std::size_t max_ulpdu_ = 0;
  const std::uint32_t ord_;
  const std::size_t place_early_bytes_;

  bool open_ = true;
  bool heard_ = false;          // the peer's first FPDU has arrived and is valid, so a responder may send
  bool is_first_ = false;       // that FPDU is being handled
  bool input_over_ = false;     // the peer has closed its direction, and ours is open
  bool output_over_ = false;    // this end has closed its direction
  bool needs_receive_ = false;  // consume() has stopped before a message for which there is no receive
  bool terminate_due_ = false;  // terminate_ has to be sent
  bool late_access_ = false;    // terminate_ is about a key that this end has revoked: ending::late_access
  std::optional<std::uint32_t> refused_stag_;  // ending::refused_stag
  terminate_message terminate_;

  linked_queue<request, &request::next_> requests_;
  request* next_ = nullptr;  // the first request that is not completely gathered
  linked_queue<request, &request::next_read_>
      queries_;  // the reads and atomics of requests_ that wait for their response
  std::uint32_t reads_in_flight_ = 0;
  bool ready_response_due_ = false;  // the response to the ready signal comes before those to reads
  bool ready_send_due_;              // the ready signal comes before the peer's messages
  std::uint32_t next_sink_stag_;
  std::uint32_t next_send_sequence_;
  std::uint32_t next_read_sequence_;             // atomics included
  std::uint32_t next_atomic_response_sequence_;  // of our responses

  // Bytes of the outgoing stream: how many were gathered into batches, and how many of these TCP has taken.
  std::uint64_t gathered_ = 0;
  std::uint64_t sent_ = 0;
  lane lane_ = lane::requests;
  std::size_t lane_bytes_left_;  // before the other lane has its turn
  bool in_message_ = false;      // the lane's last FPDU did not end its message

  linked_queue<receive_request, &receive_request::next_> receives_;
  std::uint32_t expected_send_;
  std::uint32_t expected_read_;  // atomics included
  std::uint32_t expected_atomic_response_;
  std::size_t message_bytes_ = 0;  // received so far of the message in the first receive
  bool message_begun_ = false;
  bool write_begun_ = false;
  opcode message_opcode_ = opcode::send;
  early_segment early_;
  std::span<const std::byte> delivered_;  // the front of the segment whose message host_.received() is handling
  std::size_t delivered_bytes_ = 0;       // length of that whole segment
  incoming_requests incoming_;
};

}  // namespace weft::net::iwarp

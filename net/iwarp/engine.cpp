// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/kernel_copy.hpp>
#include <weft/net/iwarp/wire.hpp>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace weft::net::iwarp {
namespace {

// Before the other lane has its turn.
constexpr std::size_t fair_share_bytes = 65'536;
// Payload up to this size is copied: that is cheaper than one more segment for the kernel to walk.
constexpr std::size_t inline_bytes = 256;
constexpr std::size_t trailer_bytes = 3 + mpa::crc_bytes;  // at most
constexpr std::size_t word_bytes = sizeof(std::uint64_t);
// With this much room in a batch, any request gets on, a write by a word at least.
constexpr std::size_t message_room_bytes =
    mpa::length_bytes + untagged_header::bytes + word_bytes + inline_bytes + trailer_bytes;
constexpr std::size_t message_room_segments = 3;

/// Four of the eight bytes of immediate data, where NICs put the four of InfiniBand.
struct immediate_data {
  static constexpr std::size_t bytes = 8;
  std::uint32_t value;
};

void encode(const immediate_data& data, std::span<std::byte, immediate_data::bytes> out) noexcept {
  store_be(&out[0], data.value);
  store_be(&out[4], std::uint32_t{0});
}

template <class Body>
using ulpdu_of = std::array<std::byte, untagged_header::bytes + Body::bytes>;

/// Payload in an FPDU that is not the last of its message: a multiple of eight needs no pad and keeps copies aligned.
std::size_t payload_limit(std::size_t max_ulpdu, std::size_t header_bytes) noexcept {
  return (max_ulpdu - header_bytes) & ~std::size_t{7};
}

/// Shortens the payload of an FPDU that is not the last one, so that it ends where a word of the memory at `offset`
/// does. A word in two FPDUs would be read or written in two parts.
std::size_t without_a_cut_word(std::uint64_t offset, std::size_t bytes) noexcept {
  assert(bytes >= word_bytes);
  return bytes - static_cast<std::size_t>((offset + bytes) % word_bytes);
}

bool is_send(opcode op) noexcept { return op >= opcode::send && op <= opcode::send_solicited_with_invalidate; }

bool is_immediate(opcode op) noexcept { return op == opcode::immediate || op == opcode::immediate_solicited; }

bool is_solicited(opcode op) noexcept {
  return op == opcode::send_solicited || op == opcode::send_solicited_with_invalidate ||
         op == opcode::immediate_solicited;
}

bool invalidates(opcode op) noexcept {
  return op == opcode::send_with_invalidate || op == opcode::send_solicited_with_invalidate;
}

opcode opcode_of(const request& request) noexcept {
  if (request.kind == request_kind::write) return opcode::write;
  if (request.kind == request_kind::read) return opcode::read_request;
  if (request.kind == request_kind::send) return request.solicited ? opcode::send_solicited : opcode::send;
  return request.solicited ? opcode::send_solicited_with_invalidate : opcode::send_with_invalidate;
}

/// What DDP calls a refused Write. It has no code for missing rights; like siw, take the closest.
terminate_code write_cause(access_status status) noexcept {
  switch (status) {
    case access_status::bounds:
      return cause::tagged_bounds;
    case access_status::not_associated:
      return cause::tagged_not_associated;
    case access_status::wrap:
      return cause::tagged_wrap;
    default:
      return cause::tagged_invalid_stag;
  }
}

terminate_code read_cause(access_status status) noexcept {
  switch (status) {
    case access_status::bounds:
      return cause::read_bounds;
    case access_status::access:
      return cause::read_access;
    case access_status::not_associated:
      return cause::read_not_associated;
    case access_status::wrap:
      return cause::read_wrap;
    case access_status::misaligned:
      return cause::stream_catastrophic;  // RFC 7306 section 8.2
    default:
      return cause::read_invalid_stag;
  }
}

/// Whether a request names memory of the peer's.
bool has_place(request_kind kind) noexcept { return kind == request_kind::write || is_query(kind); }

bool wraps(std::uint64_t offset, std::uint64_t bytes) noexcept { return offset + bytes < offset; }

/// The bytes at a cursor, at most `limit`, skipping empty segments; the cursor must not stand at the end.
template <class Cursor>
std::span<std::byte> piece_at(std::span<const iovec> segments, Cursor& at, std::size_t limit) noexcept {
  while (at.offset == segments[at.segment].iov_len) at = {.segment = at.segment + 1, .offset = 0};
  const iovec& segment = segments[at.segment];
  const std::span whole(static_cast<std::byte*>(segment.iov_base), segment.iov_len);
  return whole.subspan(at.offset, std::min(limit, whole.size() - at.offset));
}

std::span<std::byte, untagged_header::bytes> untagged_at(std::byte* place) noexcept {
  return std::span<std::byte, untagged_header::bytes>(place, untagged_header::bytes);
}

std::span<std::byte, tagged_header::bytes> tagged_at(std::byte* place) noexcept {
  return std::span<std::byte, tagged_header::bytes>(place, tagged_header::bytes);
}

template <class Body>
ulpdu_of<Body> encode_message(const untagged_header& header, const Body& body) noexcept {
  ulpdu_of<Body> ulpdu;
  encode(header, std::span(ulpdu).template first<untagged_header::bytes>());
  encode(body, std::span(ulpdu).template last<Body::bytes>());
  return ulpdu;
}

ulpdu_of<read_request> encode_query(std::uint32_t sequence, const read_request& body) noexcept {
  return encode_message({.opcode = opcode::read_request, .queue = read_request_queue, .sequence = sequence}, body);
}

/// Without masks; what a fetch_add does not use has the values that RFC 7306 section 5.2.1 asks for.
atomic_request atomic_of(std::uint32_t id, const request& query) noexcept {
  const bool swaps = query.kind == request_kind::compare_swap;
  return {.operation = swaps ? atomic_operation::compare_swap : atomic_operation::fetch_add,
          .id = id,
          .stag = query.stag,
          .offset = query.offset,
          .operand = query.operand,
          .mask = swaps ? atomic_request::every_bit : 0,
          .compare = swaps ? query.compare : 0};
}

ulpdu_of<atomic_request> encode_query(std::uint32_t sequence, const atomic_request& body) noexcept {
  return encode_message({.opcode = opcode::atomic_request, .queue = read_request_queue, .sequence = sequence}, body);
}

words closed_with_operations() noexcept {
  return words::format("the peer closed the connection while operations were outstanding");
}

}  // namespace

// The memory of the peer's that it would not let us touch. What has completed may be what it was: a write has once TCP
// has taken it, long before the peer refuses it.
struct engine::refused_place {
  const char* verb;
  std::uint32_t stag;
  std::uint64_t offset;
};

engine::engine(engine_host& host, const engine_options& options)
    : host_(host),
      initiator_(options.initiator),
      crc_(options.crc),
      interleave_(options.interleave),
      atomics_(options.atomics),
      immediate_(options.immediate),
      half_close_(options.half_close),
      ird_(std::max<std::uint32_t>(options.ird, 1)),
      ord_(options.ord),
      place_early_bytes_(std::max(options.place_early_bytes, trailer_bytes + 1)),
      ready_send_due_(!options.initiator && options.signal_is_send),
      next_sink_stag_(options.sink_stag_seed),
      next_send_sequence_(options.first_sequence),
      next_read_sequence_(options.first_sequence),
      next_atomic_response_sequence_(options.first_sequence),
      lane_bytes_left_(fair_share_bytes),
      expected_send_(options.first_sequence),
      expected_read_(options.first_sequence),
      expected_atomic_response_(options.first_sequence),
      incoming_(new incoming_request[ird_]) {
  limit_ulpdu(options.max_ulpdu);
  if (!options.initiator || !options.signal_was_read) return;
  ++next_read_sequence_;
  ++reads_in_flight_;
  ready_response_due_ = true;
}

engine::~engine() { assert(first_request_ == nullptr && first_receive_ == nullptr); }

// ---- what comes in ----

std::size_t engine::consume(std::span<const std::byte> bytes, std::size_t budget_bytes) noexcept {
  std::size_t used = 0;
  while (open_ && !needs_receive_ && used < budget_bytes) {
    const auto rest = bytes.subspan(used);
    if (early_.trailer_left != 0) {
      if (rest.empty()) break;
      used += continue_early(rest);
      continue;
    }
    if (rest.size() < mpa::length_bytes) break;
    const std::size_t ulpdu_bytes = load_be<std::uint16_t>(rest.data());
    if (ulpdu_bytes > mpa::max_ulpdu_bytes) {
      terminate(cause::framing, {}, words::format("the peer announced an FPDU of %zu bytes", ulpdu_bytes));
      break;
    }
    const std::size_t whole = mpa::fpdu_bytes(ulpdu_bytes);
    if (rest.size() < whole) {
      const std::size_t front_bytes = begin_early(rest, ulpdu_bytes);
      if (front_bytes == 0) break;
      used += front_bytes;
      continue;
    }
    if (!handle_fpdu(rest.first(whole), ulpdu_bytes)) break;
    used += whole;
  }
  return open_ ? used : bytes.size();  // what follows the end is dropped: RFC 5041 section 7.1
}

bool engine::handle_fpdu(std::span<const std::byte> fpdu, std::size_t ulpdu_bytes) noexcept {
  const std::size_t covered = fpdu.size() - mpa::crc_bytes;
  if (crc_ && !check_crc(&fpdu[covered], crc32c_of(fpdu.first(covered)), fpdu.size())) return true;
  const bool taken = handle_ulpdu(fpdu.subspan(mpa::length_bytes, ulpdu_bytes));
  heard_ = true;
  return taken;
}

bool engine::check_crc(const std::byte* field, std::uint32_t computed, std::size_t fpdu_bytes) noexcept {
  const std::uint32_t carried = mpa::load_crc(field);
  if (carried == computed) return true;
  terminate(cause::crc_mismatch, {},
            words::format("CRC mismatch: an FPDU of %zu bytes carries 0x%08" PRIx32 ", its contents give 0x%08" PRIx32,
                          fpdu_bytes, carried, computed));
  return false;
}

bool engine::handle_ulpdu(std::span<const std::byte> ulpdu) noexcept {
  if (ulpdu.size() < tagged_header::bytes)
    return terminate(cause::framing, {}, words::format("an FPDU of %zu bytes is too short for a header", ulpdu.size())),
           true;
  const control front = parse_control(ulpdu.first<control_bytes>());
  if (!front.tagged && ulpdu.size() < untagged_header::bytes)
    return terminate(cause::framing, {},
                     words::format("an untagged FPDU of %zu bytes is too short for its header", ulpdu.size())),
           true;
  if (front.ddp_version != ddp_version)
    return terminate(front.tagged ? cause::tagged_version : cause::untagged_version, ulpdu,
                     words::format("DDP version %u", unsigned{front.ddp_version})),
           true;
  if (front.rdmap_version != rdmap_version)
    return terminate(cause::rdmap_version, ulpdu, words::format("RDMAP version %u", unsigned{front.rdmap_version})),
           true;
  if (!front.tagged) return handle_untagged(ulpdu);
  handle_tagged(ulpdu);
  return true;
}

void engine::handle_tagged(std::span<const std::byte> ulpdu) noexcept {
  const tagged_header header = parse_tagged(ulpdu.first<tagged_header::bytes>());
  if (header.opcode == opcode::write) return handle_write(header, ulpdu);
  if (header.opcode == opcode::read_response && ready_response_due_) return handle_ready_response(header, ulpdu);
  if (header.opcode == opcode::read_response) return handle_read_response(header, ulpdu);
  terminate(cause::unexpected_opcode, ulpdu,
            words::format("a tagged segment with opcode %u", static_cast<unsigned>(header.opcode)));
}

std::optional<std::uint32_t> engine::queue_of(opcode op) const noexcept {
  if (is_send(op) || (immediate_ && is_immediate(op))) return send_queue;
  if (op == opcode::read_request || (atomics_ && op == opcode::atomic_request)) return read_request_queue;
  if (op == opcode::terminate) return terminate_queue;
  if (atomics_ && op == opcode::atomic_response) return atomic_response_queue;
  return std::nullopt;
}

bool engine::handle_untagged(std::span<const std::byte> ulpdu) noexcept {
  const untagged_header header = parse_untagged(ulpdu.first<untagged_header::bytes>());
  const auto number = static_cast<unsigned>(header.opcode);
  const auto queue = queue_of(header.opcode);
  if (!queue)
    return terminate(cause::unexpected_opcode, ulpdu, words::format("an untagged segment with opcode %u", number)),
           true;
  if (header.queue != *queue)
    return terminate(cause::untagged_queue, ulpdu, words::format("opcode %u on queue %" PRIu32, number, header.queue)),
           true;
  if (queue == send_queue) return handle_send(header, ulpdu);
  if (queue == terminate_queue)
    handle_terminate(ulpdu);
  else if (header.opcode == opcode::read_request)
    handle_read_request(header, ulpdu);
  else if (header.opcode == opcode::atomic_request)
    handle_atomic_request(header, ulpdu);
  else
    handle_atomic_response(header, ulpdu);
  return true;
}

void engine::handle_write(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  const auto payload = ulpdu.subspan(tagged_header::bytes);
  write_begun_ = !header.last;
  if (payload.empty()) {  // its STag and offset must not be checked: RFC 5041 section 5.2
    if (header.last) host_.written(header.stag);
    return;
  }
  const access_status status =
      wraps(header.offset, payload.size()) ? access_status::wrap : write(header.stag, header.offset, payload);
  if (status == access_status::ok) {
    if (header.last) host_.written(header.stag);
    return;
  }
  terminate(write_cause(status), ulpdu, refusal("write", payload.size(), header.stag, header.offset, status));
}

access_status engine::write(std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> payload) noexcept {
  std::atomic_thread_fence(std::memory_order_release);  // whoever sees this write sees those before it
  for (;;) {
    const write_target target = host_.find_write_target(stag, offset, payload.size());
    if (target.status != access_status::ok) return target.status;
    if (!target.may_shrink) {
      mr::store_shared(target.memory, payload.first(target.memory.size()));
    } else if (!copy_into(target.memory, payload.first(target.memory.size()))) {
      return access_status::bounds;
    }
    if (target.memory.size() == payload.size()) return access_status::ok;
    payload = payload.subspan(target.memory.size());
    offset += target.memory.size();
  }
}

void engine::handle_ready_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (!header.last || ulpdu.size() != tagged_header::bytes)
    return terminate(cause::tagged_bounds, ulpdu, words::format("data in response to a zero-length read"));
  ready_response_due_ = false;
  --reads_in_flight_;
}

void engine::handle_read_response(const tagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (first_read_ == nullptr || is_atomic(first_read_->kind))
    return terminate(cause::unexpected_opcode, ulpdu, words::format("a read response without a read"));
  request& read = *first_read_;
  const auto payload = ulpdu.subspan(tagged_header::bytes);
  const std::uint64_t left = read.total_ - read.done_;
  if (!payload.empty() && header.stag != read.sink_stag_)
    return terminate(cause::tagged_invalid_stag, ulpdu,
                     words::format("a read response to another STag than its read's"));
  if (!payload.empty() && header.offset != read.done_)
    return terminate(
        cause::tagged_bounds, ulpdu,
        words::format("a read response at offset %" PRIu64 ", where %" PRIu64 " is due", header.offset, read.done_));
  if (payload.size() > left || (payload.size() == left && !header.last))
    return terminate(cause::tagged_bounds, ulpdu,
                     words::format("a read response of more than the %" PRIu64 " bytes asked for", read.total_));
  if (header.last && payload.size() < left)
    return terminate(cause::operation_unspecified, ulpdu,
                     words::format("a read response of %" PRIu64 " bytes, %" PRIu64 " were asked for",
                                   read.done_ + payload.size(), read.total_));

  fill_read(read, payload);
  finish_read_response(header.last);
}

void engine::fill_read(request& read, std::span<const std::byte> payload) noexcept {
  read.done_ += payload.size();
  while (!payload.empty()) {
    const auto piece = piece_at(read.local, read.at_, payload.size());
    std::memcpy(piece.data(), payload.data(), piece.size());
    read.at_.offset += piece.size();
    payload = payload.subspan(piece.size());
  }
}

void engine::finish_read_response(bool last) noexcept {
  if (last) read_answered();
}

void engine::read_answered() noexcept {
  first_read_->answered_ = true;
  first_read_ = first_read_->next_read_;
  --reads_in_flight_;
  retire();
}

bool engine::handle_send(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  const auto payload = ulpdu.subspan(untagged_header::bytes);
  if (header.sequence != expected_send_)
    return terminate(cause::untagged_sequence, ulpdu,
                     words::format("message %" PRIu32 ", where %" PRIu32 " is due", header.sequence, expected_send_)),
           true;
  if (header.offset != message_bytes_)
    return terminate(cause::untagged_offset, ulpdu,
                     words::format("a segment at offset %" PRIu32 " of its message, where %zu is due", header.offset,
                                   message_bytes_)),
           true;
  if (message_begun_ && header.opcode != message_opcode_)
    return terminate(cause::unexpected_opcode, ulpdu, words::format("a message that changes its opcode")), true;
  if (std::exchange(ready_send_due_, false) && header.last && payload.empty()) return ++expected_send_, true;
  const bool fixed = is_immediate(header.opcode);
  if (fixed && !check_message(header, ulpdu, immediate_data::bytes, expected_send_)) return true;
  if (!has_receive()) {
    needs_receive_ = true;
    return false;
  }
  if (fixed) return deliver(header, ulpdu, ulpdu.size()), true;
  const std::span<std::byte> room = first_receive_->buffer.subspan(message_bytes_);
  if (payload.size() > room.size())
    return terminate(cause::untagged_too_long, ulpdu,
                     words::format("a message of %zu bytes or more, the receive has room for %zu",
                                   message_bytes_ + payload.size(), first_receive_->buffer.size())),
           true;
  if (!payload.empty()) std::memcpy(room.data(), payload.data(), payload.size());
  message_bytes_ += payload.size();
  message_begun_ = true;
  message_opcode_ = header.opcode;
  if (header.last) deliver(header, ulpdu, ulpdu.size());
  return true;
}

bool engine::has_receive() noexcept {
  if (first_receive_ != nullptr) return true;
  receive_request* const taken = host_.take_receive();
  if (taken == nullptr) return false;
  taken->next_ = nullptr;
  first_receive_ = last_receive_ = taken;
  return true;
}

void engine::deliver(const untagged_header& header, std::span<const std::byte> front,
                     std::size_t ulpdu_bytes) noexcept {
  received_info info{.bytes = message_bytes_, .solicited = is_solicited(header.opcode)};
  if (is_immediate(header.opcode)) info.immediate = load_be<std::uint32_t>(&front[untagged_header::bytes]);
  if (invalidates(header.opcode)) {
    const access_status status = host_.invalidate(header.invalidate_stag);
    if (status != access_status::ok) {
      late_access_ = status == access_status::invalid_stag && host_.was_revoked(header.invalidate_stag);
      return terminate(status == access_status::access ? cause::cannot_invalidate : read_cause(status), front,
                       words::format("the peer would invalidate STag 0x%08" PRIx32 "%s", header.invalidate_stag,
                                     late_access_ ? ": a key that this end has revoked" : ""),
                       std::nullopt, ulpdu_bytes);
    }
    info.invalidated_stag = header.invalidate_stag;
  }
  receive_request& receive = *first_receive_;
  first_receive_ = receive.next_;
  ++expected_send_;
  message_bytes_ = 0;
  message_begun_ = false;
  host_.received(receive, info);
}

// What all messages of one FPDU and a fixed length have in common: those that ask, and answers to atomics.
bool engine::check_message(const untagged_header& header, std::span<const std::byte> ulpdu, std::size_t body_bytes,
                           std::uint32_t sequence) noexcept {
  const auto number = static_cast<unsigned>(header.opcode);
  const std::size_t bytes = ulpdu.size() - untagged_header::bytes;
  if (header.sequence != sequence)
    return terminate(cause::untagged_sequence, ulpdu,
                     words::format("message %" PRIu32 " of queue %" PRIu32 ", where %" PRIu32 " is due",
                                   header.sequence, header.queue, sequence)),
           false;
  if (header.offset != 0)
    return terminate(cause::untagged_offset, ulpdu,
                     words::format("opcode %u at offset %" PRIu32 " of its message", number, header.offset)),
           false;
  if (bytes > body_bytes)
    return terminate(cause::untagged_too_long, ulpdu, words::format("opcode %u with %zu bytes", number, bytes)), false;
  if (bytes < body_bytes || !header.last)
    return terminate(cause::operation_unspecified, ulpdu, words::format("opcode %u with %zu bytes", number, bytes)),
           false;
  return true;
}

bool engine::check_request(const untagged_header& header, std::span<const std::byte> ulpdu,
                           std::size_t body_bytes) noexcept {
  if (!check_message(header, ulpdu, body_bytes, expected_read_)) return false;
  if (incoming_count_ != ird_) return true;
  terminate(cause::untagged_no_buffer, ulpdu,
            words::format("more than the %" PRIu32 " outstanding reads agreed on", ird_));
  return false;
}

void engine::accept(const incoming_request& incoming) noexcept {
  ++expected_read_;
  incoming_[(first_incoming_ + incoming_count_) % ird_] = incoming;
  ++incoming_count_;
}

void engine::handle_atomic_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (!check_request(header, ulpdu, atomic_request::bytes)) return;
  const atomic_request asked = parse_atomic_request(ulpdu.last<atomic_request::bytes>());
  if (asked.operation != atomic_operation::fetch_add && asked.operation != atomic_operation::compare_swap)
    return terminate(cause::unexpected_opcode, ulpdu,
                     words::format("atomic operation %u", static_cast<unsigned>(asked.operation)));
  const access_status status =
      wraps(asked.offset, sizeof(std::uint64_t)) ? access_status::wrap : host_.check_atomic(asked.stag, asked.offset);
  if (status != access_status::ok) return terminate_atomic(ulpdu, asked, status);
  accept({.sequence = header.sequence, .asked = asked});
}

void engine::handle_atomic_response(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (ready_response_due_ || first_read_ == nullptr || !is_atomic(first_read_->kind))
    return terminate(cause::unexpected_opcode, ulpdu, words::format("an atomic response without an atomic operation"));
  if (!check_message(header, ulpdu, atomic_response::bytes, expected_atomic_response_)) return;
  const atomic_response response = parse_atomic_response(ulpdu.last<atomic_response::bytes>());
  if (response.id != first_read_->sequence_)
    return terminate(cause::operation_unspecified, ulpdu,
                     words::format("an atomic response to operation %" PRIu32 ", where %" PRIu32 " is due", response.id,
                                   first_read_->sequence_));
  ++expected_atomic_response_;
  std::memcpy(first_read_->local.front().iov_base, &response.previous, sizeof response.previous);
  read_answered();
}

void engine::handle_read_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (!check_request(header, ulpdu, read_request::bytes)) return;
  const read_request read = parse_read_request(ulpdu.last<read_request::bytes>());
  const access_status status = read.size == 0 ? access_status::ok
                               : wraps(read.source_offset, read.size)
                                   ? access_status::wrap
                                   : host_.check_read(read.source_stag, read.source_offset, read.size);
  if (status != access_status::ok)
    return terminate(read_cause(status), ulpdu,
                     refusal("read", read.size, read.source_stag, read.source_offset, status), read);
  accept({.sequence = header.sequence, .asked = read});
}

void engine::handle_terminate(std::span<const std::byte> ulpdu) noexcept {
  auto message = parse_terminate(ulpdu.subspan(untagged_header::bytes));
  if (!message) return end(ending_reason::peer_terminated, std::nullopt, words::format("peer terminated the stream"));

  // Without headers, siw's reversed bit fields look like the two causes that only an initiator has, and only
  // ahead of everything else.
  const bool may_refuse_set_up = !initiator_ && !heard_;
  if (!may_refuse_set_up &&
      (message->code == cause::insufficient_ird || message->code == cause::no_common_ready_signal))
    message->code = {.layer = 0, .type = 2, .code = message->code.code};

  const std::optional<refused_place> where = place_of(*message);
  for (request* request = first_request_; request != nullptr; request = request->next_) {
    request->blamed_ = names(*message, *request);
    request->bystander_ = where && has_place(request->kind) && request->stag != where->stag;
  }
  const words why = describe(message->code);
  if (where)
    return end(ending_reason::peer_terminated, message->code,
               words::format("peer terminated the stream: %s, %s at offset 0x%" PRIx64 " of STag 0x%08" PRIx32,
                             why.c_str(), where->verb, where->offset, where->stag));
  end(ending_reason::peer_terminated, message->code, words::format("peer terminated the stream: %s", why.c_str()));
}

std::optional<engine::refused_place> engine::place_of(const terminate_message& message) const noexcept {
  if (message.read) return refused_place{"reading", message.read->source_stag, message.read->source_offset};
  if (!is_remote_access_error(message.code)) return std::nullopt;
  const std::span header(message.segment_header);
  if (message.segment_header_bytes == tagged_header::bytes) {
    const tagged_header tagged = parse_tagged(header.first<tagged_header::bytes>());
    if (tagged.opcode != opcode::write) return std::nullopt;
    return refused_place{"writing", tagged.stag, tagged.offset};
  }
  if (message.segment_header_bytes != untagged_header::bytes) return std::nullopt;
  for (const request* item = first_request_; item != nullptr; item = item->next_) {
    if (!is_query(item->kind) || !names(message, *item)) continue;
    return refused_place{is_atomic(item->kind) ? "changing" : "reading", item->stag, item->offset};
  }
  return std::nullopt;
}

bool engine::names(const terminate_message& message, const request& request) const noexcept {
  if (!is_remote_access_error(message.code) || !request.started_) return false;
  const bool is_read = request.kind == request_kind::read;
  if (message.read) return is_read && request.sink_stag_ == message.read->sink_stag;

  const std::span header(message.segment_header);
  if (message.segment_header_bytes == tagged_header::bytes) {
    const tagged_header tagged = parse_tagged(header.first<tagged_header::bytes>());
    return request.kind == request_kind::write && tagged.opcode == opcode::write && tagged.stag == request.stag &&
           tagged.offset - request.offset < request.total_;
  }
  if (message.segment_header_bytes != untagged_header::bytes) return false;
  const untagged_header untagged = parse_untagged(header);
  if (is_query(request.kind)) return untagged.queue == read_request_queue && untagged.sequence == request.sequence_;
  return request.kind == request_kind::send_with_invalidate && untagged.queue == send_queue &&
         untagged.sequence == request.sequence_;
}

// ---- what is placed as it comes ----

bool engine::is_next_response(const tagged_header& header, std::size_t payload_bytes) const noexcept {
  if (ready_response_due_ || first_read_ == nullptr || is_atomic(first_read_->kind)) return false;
  const std::uint64_t left = first_read_->total_ - first_read_->done_;
  return header.stag == first_read_->sink_stag_ && header.offset == first_read_->done_ && payload_bytes <= left &&
         header.last == (payload_bytes == left);
}

bool engine::is_next_segment(const untagged_header& header, std::size_t payload_bytes) noexcept {
  return !ready_send_due_ && is_send(header.opcode) && header.queue == send_queue &&
         header.sequence == expected_send_ && header.offset == message_bytes_ &&
         (!message_begun_ || header.opcode == message_opcode_) && has_receive() &&
         payload_bytes <= first_receive_->buffer.size() - message_bytes_;
}

// What is wrong with a segment is said once it is whole: here only those get through with which nothing is.
bool engine::may_place_early(std::span<const std::byte> front, std::size_t ulpdu_bytes) noexcept {
  const control control = parse_control(front.first<control_bytes>());
  if (control.ddp_version != ddp_version || control.rdmap_version != rdmap_version) return false;
  if (!control.tagged) {
    return is_next_segment(parse_untagged(front.first<untagged_header::bytes>()), ulpdu_bytes - untagged_header::bytes);
  }
  const tagged_header header = parse_tagged(front.first<tagged_header::bytes>());
  const std::size_t payload_bytes = ulpdu_bytes - tagged_header::bytes;
  if (header.opcode == opcode::read_response) return is_next_response(header, payload_bytes);
  return header.opcode == opcode::write && payload_bytes > place_early_bytes_ && !wraps(header.offset, payload_bytes) &&
         host_.find_write_target(header.stag, header.offset, payload_bytes).status == access_status::ok;
}

// Returns the bytes of the front that it has taken; 0 if the segment has to come whole.
std::size_t engine::begin_early(std::span<const std::byte> bytes, std::size_t ulpdu_bytes) noexcept {
  if (bytes.size() < mpa::length_bytes + untagged_header::bytes) return 0;
  const std::size_t whole = mpa::fpdu_bytes(ulpdu_bytes);
  if (whole - bytes.size() < place_early_bytes_) return 0;
  const auto front = bytes.subspan(mpa::length_bytes);
  if (!may_place_early(front, ulpdu_bytes)) return 0;

  const control control = parse_control(front.first<control_bytes>());
  early_ = {};
  early_.header_bytes = control.tagged ? tagged_header::bytes : untagged_header::bytes;
  std::ranges::copy(front.first(early_.header_bytes), early_.header.begin());
  early_.ulpdu_bytes = ulpdu_bytes;
  early_.payload_left = early_.payload_bytes();
  early_.trailer_bytes = early_.trailer_left = whole - mpa::length_bytes - ulpdu_bytes;
  if (!control.tagged) {
    message_begun_ = true;
    message_opcode_ = control.opcode;
  }
  const std::size_t taken = mpa::length_bytes + early_.header_bytes;
  if (crc_) early_.crc.add(bytes.first(taken));
  return taken;
}

std::size_t engine::continue_early(std::span<const std::byte> bytes) noexcept {
  if (early_.payload_left != 0) {
    const auto payload = bytes.first(std::min(bytes.size(), early_.payload_left));
    if (crc_) early_.crc.add(payload);
    place_early(payload);
    return payload.size();
  }
  const auto piece = bytes.first(std::min(bytes.size(), early_.trailer_left));
  std::ranges::copy(piece, early_.trailer.begin() + static_cast<std::ptrdiff_t>(early_.trailer_bytes) -
                               static_cast<std::ptrdiff_t>(early_.trailer_left));
  early_.trailer_left -= piece.size();
  if (early_.trailer_left == 0) finish_early();
  return piece.size();
}

void engine::place_early(std::span<const std::byte> payload) noexcept {
  if (!early_.is_tagged()) {
    std::memcpy(&first_receive_->buffer[message_bytes_], payload.data(), payload.size());
    message_bytes_ += payload.size();
    early_.payload_left -= payload.size();
    return;
  }
  const tagged_header header = parse_tagged(early_.front().first<tagged_header::bytes>());
  if (header.opcode == opcode::write) {
    const access_status status = write(header.stag, header.offset + early_.payload_done(), payload);
    if (status != access_status::ok) return refuse_early_write(status);
  } else {
    fill_read(*first_read_, payload);
  }
  early_.payload_left -= payload.size();
}

std::span<std::byte> engine::placement() noexcept {
  if (early_.payload_left == 0) return {};
  std::span<std::byte> place;
  if (!early_.is_tagged()) {
    place = first_receive_->buffer.subspan(message_bytes_, early_.payload_left);
  } else {
    const tagged_header header = parse_tagged(early_.front().first<tagged_header::bytes>());
    if (header.opcode == opcode::write) {
      const write_target target =
          host_.find_write_target(header.stag, header.offset + early_.payload_done(), early_.payload_left);
      if (target.status != access_status::ok) return refuse_early_write(target.status), std::span<std::byte>();
      if (target.may_shrink) return {};
      place = target.memory;
    } else {
      place = piece_at(first_read_->local, first_read_->at_, early_.payload_left);
    }
  }
  early_.placement = place.data();
  return place;
}

void engine::placed(std::size_t bytes) noexcept {
  assert(bytes <= early_.payload_left);
  if (bytes == 0) return;
  if (crc_) early_.crc.add({early_.placement, bytes});
  early_.payload_left -= bytes;
  if (!early_.is_tagged()) {
    message_bytes_ += bytes;
  } else if (parse_control(early_.front().first<control_bytes>()).opcode == opcode::read_response) {
    first_read_->done_ += bytes;
    first_read_->at_.offset += bytes;
  }
}

void engine::finish_early() noexcept {
  const std::span trailer = std::span(early_.trailer).first(early_.trailer_bytes);
  if (crc_) {
    early_.crc.add(trailer.first(trailer.size() - mpa::crc_bytes));
    if (!check_crc(trailer.last<mpa::crc_bytes>().data(), early_.crc.value(), mpa::fpdu_bytes(early_.ulpdu_bytes)))
      return;
  }
  heard_ = true;
  const control control = parse_control(early_.front().first<control_bytes>());
  if (!control.tagged) {
    if (control.last)
      deliver(parse_untagged(early_.front().first<untagged_header::bytes>()), early_.front(), early_.ulpdu_bytes);
  } else if (control.opcode == opcode::write) {
    write_begun_ = !control.last;
    if (control.last) host_.written(parse_tagged(early_.front().first<tagged_header::bytes>()).stag);
  } else {
    finish_read_response(control.last);
  }
}

void engine::refuse_early_write(access_status status) noexcept {
  const tagged_header header = parse_tagged(early_.front().first<tagged_header::bytes>());
  const std::size_t bytes = early_.payload_bytes();
  terminate(write_cause(status), early_.front(), refusal("write", bytes, header.stag, header.offset, status),
            std::nullopt, early_.ulpdu_bytes);
}

void engine::end_of_stream(std::size_t unconsumed_bytes) noexcept {
  if (!open_) return;
  if (early_.trailer_left != 0)
    unconsumed_bytes += mpa::fpdu_bytes(early_.ulpdu_bytes) - early_.payload_left - early_.trailer_left;
  if (unconsumed_bytes != 0)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection %zu bytes into an FPDU", unconsumed_bytes));
  if (message_begun_ || write_begun_)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection in the middle of a message"));
  const bool in_vain = half_close_ ? waits_for_an_answer() : first_request_ != nullptr;
  if (in_vain || reads_in_flight_ != 0)
    return end(ending_reason::connection_lost, std::nullopt, closed_with_operations());
  if (half_close_) {
    input_over_ = true;
    return end_if_nothing_is_owed();
  }
  if (incoming_count_ != 0 || gathered_ != sent_)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection before it had its read responses"));
  end(ending_reason::peer_closed, std::nullopt, words::format("the peer closed the connection"));
}

// A request that needs an answer will get none.
bool engine::waits_for_an_answer() const noexcept {
  for (const request* item = first_request_; item != nullptr; item = item->next_) {
    if (is_query(item->kind)) return true;
  }
  return false;
}

void engine::end_if_nothing_is_owed() noexcept {
  if (!open_) return;
  if (waits_for_an_answer()) return end(ending_reason::connection_lost, std::nullopt, closed_with_operations());
  if (first_request_ == nullptr && incoming_count_ == 0 && gathered_ == sent_)
    end(ending_reason::peer_closed, std::nullopt, words::format("the peer closed the connection"));
}

// ---- requests and receives ----

bool engine::post(request& request) noexcept {
  std::uint64_t total = 0;
  for (const iovec& segment : request.local) total += segment.iov_len;
  if (total > max_message_bytes || (is_query(request.kind) && ord_ == 0)) return false;
  if (request.immediate && !(immediate_ && request.kind == request_kind::write)) return false;
  const bool has_word = request.local.size() == 1 && total == sizeof(std::uint64_t);
  if (is_atomic(request.kind) && !(atomics_ && has_word)) return false;

  request.total_ = total;
  request.done_ = 0;
  request.at_ = {};
  request.started_ = request.gathered_ = request.answered_ = request.blamed_ = request.bystander_ = false;
  request.next_ = request.next_read_ = nullptr;
  (first_request_ == nullptr ? first_request_ : last_request_->next_) = &request;
  last_request_ = &request;
  if (!open_) return flush(), true;
  if (next_ == nullptr) next_ = &request;
  return true;
}

void engine::post_receive(receive_request& receive) noexcept {
  receive.next_ = nullptr;
  (first_receive_ == nullptr ? first_receive_ : last_receive_->next_) = &receive;
  last_receive_ = &receive;
  needs_receive_ = false;
  if (!open_) flush();
}

bool engine::is_released(const request& request) const noexcept {
  return !request.started_ || gathered_ == sent_ || (request.gathered_ && request.end_ <= sent_);
}

void engine::retire() noexcept {
  while (open_ && first_request_ != nullptr) {
    const request& first = *first_request_;
    const bool is_sent = first.gathered_ && first.end_ <= sent_;
    if (!is_sent || (is_query(first.kind) && !first.answered_)) return;
    complete_first({.status = completion_status::ok, .bytes = first.total_});
  }
}

void engine::complete_first(const completion& completion) noexcept {
  request& first = *first_request_;
  first_request_ = first.next_;
  host_.completed(first, completion);
}

// ---- what goes out ----

bool engine::choose_lane() noexcept {
  if (in_message_ && !interleave_) return true;
  const lane other = lane_ == lane::requests ? lane::responses : lane::requests;
  if (is_ready(other) && (lane_bytes_left_ == 0 || !is_ready(lane_))) {
    lane_ = other;
    lane_bytes_left_ = fair_share_bytes;
  }
  return is_ready(lane_);
}

bool engine::gather(output_batch& batch) noexcept {
  assert(batch.empty() && gathered_ == sent_);
  batch.clear();
  while (!batch.is_full() && gather_fpdu(batch)) {
  }
  return !batch.empty();
}

bool engine::gather_fpdu(output_batch& batch) noexcept {
  if (batch.storage_room() < message_room_bytes || batch.segment_room() < message_room_segments) return false;
  if (!open_) return terminate_due_ && gather_terminate(batch);
  if (!choose_lane()) return false;
  if (lane_ == lane::responses) return gather_response(batch);
  if (is_query(next_->kind))
    gather_query(batch);
  else if (next_->started_ && next_->done_ == next_->total_)
    gather_immediate(batch);
  else
    gather_message(batch);
  return true;
}

void engine::gather_message(output_batch& batch) noexcept {
  request& request = *next_;
  const opcode op = opcode_of(request);
  const bool is_write = op == opcode::write;
  const std::size_t header_bytes = is_write ? tagged_header::bytes : untagged_header::bytes;
  if (!request.started_ && !is_write) request.sequence_ = next_send_sequence_++;
  request.started_ = true;

  const auto start = batch.here();
  std::byte* const header = batch.append(mpa::length_bytes + header_bytes) + mpa::length_bytes;
  const std::uint64_t offset = request.done_;
  const std::size_t payload_bytes = gather_payload(batch, request, payload_limit(max_ulpdu_, header_bytes));
  request.done_ += payload_bytes;
  const bool complete = request.done_ == request.total_;

  if (is_write) {
    // Nobody sees where one Write message ends and the next begins, so a long one makes room for responses.
    const bool yields = !interleave_ && is_ready(lane::responses) && lane_bytes_left_ <= payload_bytes;
    in_message_ = !complete && !yields;
    encode(tagged_header{.last = !in_message_, .opcode = op, .stag = request.stag, .offset = request.offset + offset},
           tagged_at(header));
  } else {
    in_message_ = !complete;
    encode(untagged_header{.last = complete,
                           .opcode = op,
                           .invalidate_stag = invalidates(op) ? request.stag : 0,
                           .queue = send_queue,
                           .sequence = request.sequence_,
                           .offset = static_cast<std::uint32_t>(offset)},
           untagged_at(header));
  }
  seal(batch, start, header_bytes + payload_bytes);
  if (complete && !request.immediate) finish_gathering(request);
}

void engine::gather_immediate(output_batch& batch) noexcept {
  request& write = *next_;
  write.sequence_ = next_send_sequence_++;
  gather_whole(batch, encode_message({.opcode = write.solicited ? opcode::immediate_solicited : opcode::immediate,
                                      .sequence = write.sequence_},
                                     immediate_data{*write.immediate}));
  finish_gathering(write);
}

std::size_t engine::gather_payload(output_batch& batch, request& request, std::size_t limit) noexcept {
  const std::uint64_t left = request.total_ - request.done_;
  if (left <= limit) limit = static_cast<std::size_t>(left);
  if (request.kind != request_kind::write) return gather_pieces(batch, request, limit);
  const std::uint64_t offset = request.offset + request.done_;
  if (limit != left) limit = without_a_cut_word(offset, limit);
  const auto start = batch.here();
  const auto from = request.at_;
  const std::size_t gathered = gather_pieces(batch, request, limit);
  if (gathered == limit || (offset + gathered) % word_bytes == 0) return gathered;
  batch.rewind(start);  // the batch is full, and what it took may end within a word
  request.at_ = from;
  return gather_pieces(batch, request, without_a_cut_word(offset, gathered));
}

std::size_t engine::gather_pieces(output_batch& batch, request& request, std::size_t limit) noexcept {
  std::size_t gathered = 0;
  while (gathered < limit && batch.segment_room() > 1) {  // one is for the trailer
    const auto piece = piece_at(request.local, request.at_, limit - gathered);
    if (piece.size() > inline_bytes)
      batch.refer(piece);
    else if (batch.storage_room() >= piece.size() + trailer_bytes)
      batch.append(piece);
    else
      break;
    request.at_.offset += piece.size();
    gathered += piece.size();
  }
  return gathered;
}

void engine::gather_query(output_batch& batch) noexcept {
  request& query = *next_;
  query.started_ = true;
  query.sequence_ = next_read_sequence_++;
  (first_read_ == nullptr ? first_read_ : last_read_->next_read_) = &query;
  last_read_ = &query;
  ++reads_in_flight_;
  if (query.kind == request_kind::read) {
    query.sink_stag_ = next_sink_stag_++;
    gather_whole(batch, encode_query(query.sequence_, {.sink_stag = query.sink_stag_,
                                                       .sink_offset = 0,
                                                       .size = static_cast<std::uint32_t>(query.total_),
                                                       .source_stag = query.stag,
                                                       .source_offset = query.offset}));
  } else {
    gather_whole(batch, encode_query(query.sequence_, atomic_of(query.sequence_, query)));
  }
  finish_gathering(query);
}

// A message of one small FPDU.
void engine::gather_whole(output_batch& batch, std::span<const std::byte> ulpdu) noexcept {
  const auto start = batch.here();
  std::byte* const front = batch.append(mpa::length_bytes + ulpdu.size());
  std::memcpy(front + mpa::length_bytes, ulpdu.data(), ulpdu.size());
  in_message_ = false;
  seal(batch, start, ulpdu.size());
}

void engine::finish_gathering(request& request) noexcept {
  request.gathered_ = true;
  request.end_ = gathered_;
  next_ = request.next_;
}

bool engine::gather_response(output_batch& batch) noexcept {
  incoming_request& first = incoming_[first_incoming_];
  if (auto* const read = std::get_if<read_request>(&first.asked))
    return gather_read_response(batch, first.sequence, *read);
  gather_atomic_response(batch, first.sequence, std::get<atomic_request>(first.asked));
  return true;
}

void engine::pop_incoming() noexcept {
  first_incoming_ = (first_incoming_ + 1) % ird_;
  --incoming_count_;
}

// Executed here and not on arrival: the responses to earlier reads must not see it.
void engine::gather_atomic_response(output_batch& batch, std::uint32_t sequence, const atomic_request& asked) noexcept {
  atomic_response response{.id = asked.id};
  const access_status status = host_.remote_atomic(asked, response.previous);
  if (status != access_status::ok) return terminate_atomic(encode_query(sequence, asked), asked, status);
  gather_whole(batch, encode_message({.opcode = opcode::atomic_response,
                                      .queue = atomic_response_queue,
                                      .sequence = next_atomic_response_sequence_++},
                                     response));
  pop_incoming();
}

bool engine::gather_read_response(output_batch& batch, std::uint32_t sequence, read_request& read) noexcept {
  constexpr std::size_t front_bytes = mpa::length_bytes + tagged_header::bytes;
  std::size_t bytes = std::min<std::size_t>(read.size, payload_limit(max_ulpdu_, tagged_header::bytes));
  const std::size_t room = batch.storage_room() - front_bytes - trailer_bytes;
  if (bytes > room && !batch.empty()) return false;
  if (bytes > room) bytes = room & ~std::size_t{7};
  if (bytes < read.size) bytes = without_a_cut_word(read.source_offset, bytes);

  const auto start = batch.here();
  std::byte* const front = batch.append(front_bytes + bytes);
  if (bytes != 0) {
    const auto status = host_.remote_read(read.source_stag, read.source_offset, {front + front_bytes, bytes});
    if (status != access_status::ok) {
      batch.rewind(start);
      terminate_response(sequence, read, status);
      return true;
    }
  }
  in_message_ = bytes < read.size;
  encode(
      tagged_header{
          .last = !in_message_, .opcode = opcode::read_response, .stag = read.sink_stag, .offset = read.sink_offset},
      tagged_at(front + mpa::length_bytes));
  seal(batch, start, tagged_header::bytes + bytes);

  read.size -= static_cast<std::uint32_t>(bytes);
  read.sink_offset += bytes;
  read.source_offset += bytes;
  if (!in_message_) pop_incoming();
  return true;
}

bool engine::gather_terminate(output_batch& batch) noexcept {
  std::array<std::byte, terminate_message::max_bytes> body;
  const std::size_t body_bytes = encode(terminate_, body);
  const auto start = batch.here();
  std::byte* const header = batch.append(mpa::length_bytes + untagged_header::bytes) + mpa::length_bytes;
  encode(untagged_header{.opcode = opcode::terminate, .queue = terminate_queue}, untagged_at(header));
  batch.append(std::span(body).first(body_bytes));
  seal(batch, start, untagged_header::bytes + body_bytes);
  terminate_due_ = false;
  return true;
}

void engine::seal(output_batch& batch, const output_batch::mark& start, std::size_t ulpdu_bytes) noexcept {
  store_be(batch.storage_.get() + start.used, static_cast<std::uint16_t>(ulpdu_bytes));
  constexpr std::array<std::byte, 3> zeros{};
  if (const std::size_t pad = mpa::pad_bytes(ulpdu_bytes); pad != 0) batch.append(std::span(zeros).first(pad));
  const std::uint32_t crc = crc_ ? batch.crc_since(start) : 0;
  mpa::store_crc(batch.append(mpa::crc_bytes), crc);

  const std::size_t bytes = mpa::fpdu_bytes(ulpdu_bytes);
  gathered_ += bytes;
  lane_bytes_left_ -= std::min(lane_bytes_left_, bytes);
}

void engine::sent(output_batch& batch, std::size_t bytes) noexcept {
  batch.advance(bytes);
  sent_ += bytes;
  if (open_)
    retire();
  else
    flush();
  if (input_over_) end_if_nothing_is_owed();
}

void engine::abandon(output_batch& batch) noexcept {
  if (open_) end(ending_reason::aborted, std::nullopt, words::format("the connection's output was abandoned"));
  batch.clear();
  sent_ = gathered_;
  terminate_due_ = false;  // it would land in the middle of an FPDU
  flush();
}

// ---- the end ----

words engine::refusal(const char* verb, std::uint64_t bytes, std::uint32_t stag, std::uint64_t offset,
                      access_status status) noexcept {
  constexpr const char* reasons[] = {"no error",
                                     "invalid STag",
                                     "out of its bounds",
                                     "the region does not allow it",
                                     "the STag is another connection's",
                                     "the offset wraps",
                                     "off its 8-byte boundary"};
  late_access_ = status == access_status::invalid_stag && host_.was_revoked(stag);
  const char* const reason =
      late_access_ ? "a key that this end has revoked" : reasons[static_cast<std::size_t>(status)];
  return words::format("the peer would %s %" PRIu64 " bytes at offset 0x%" PRIx64 " of STag 0x%08" PRIx32 ": %s", verb,
                       bytes, offset, stag, reason);
}

void engine::terminate(terminate_code code, std::span<const std::byte> ulpdu, const words& why,
                       const std::optional<read_request>& read, std::size_t ulpdu_bytes) noexcept {
  terminate_ = {};
  terminate_.code = code;
  terminate_.read = read;
  if (!ulpdu.empty()) {
    const bool is_tagged = parse_control(ulpdu.first<control_bytes>()).tagged;
    terminate_.segment_bytes = static_cast<std::uint16_t>(std::max(ulpdu.size(), ulpdu_bytes));
    terminate_.segment_header_bytes = is_tagged ? tagged_header::bytes : untagged_header::bytes;
    std::ranges::copy(ulpdu.first(terminate_.segment_header_bytes), terminate_.segment_header.begin());
  }
  // RFC 5044 section 7.1.2, rule 4: a responder sends nothing before it has received one that is valid.
  terminate_due_ = initiator_ || heard_;
  end(ending_reason::terminated, code, words::format("terminated the stream: %s", why.c_str()));
}

void engine::terminate_response(std::uint32_t sequence, const read_request& left, access_status status) noexcept {
  terminate(read_cause(status), encode_query(sequence, left),
            refusal("read", left.size, left.source_stag, left.source_offset, status), left);
}

void engine::terminate_atomic(std::span<const std::byte> ulpdu, const atomic_request& asked,
                              access_status status) noexcept {
  terminate(read_cause(status), ulpdu, refusal("change", sizeof(std::uint64_t), asked.stag, asked.offset, status));
}

void engine::refuse(terminate_code code, const words& why) noexcept {
  if (open_) terminate(code, {}, why);
}

void engine::abort(const words& why) noexcept {
  if (open_) end(ending_reason::aborted, std::nullopt, why);
}

void engine::end(ending_reason reason, std::optional<terminate_code> code, const words& why) noexcept {
  open_ = false;
  needs_receive_ = false;
  next_ = nullptr;
  first_read_ = nullptr;
  reads_in_flight_ = 0;
  incoming_count_ = 0;
  early_.payload_left = early_.trailer_left = 0;
  host_.ended({.reason = reason, .code = code, .text = why, .late_access = late_access_});
  flush();
}

void engine::flush() noexcept {
  while (first_request_ != nullptr && is_released(*first_request_)) {
    completion_status status = completion_status::flushed;
    if (first_request_->bystander_) status = completion_status::bystander;
    if (first_request_->blamed_) status = completion_status::remote_access_error;
    complete_first({.status = status, .bytes = 0});
  }
  while (first_receive_ != nullptr) {
    receive_request& receive = *first_receive_;
    first_receive_ = receive.next_;
    host_.flushed(receive);
  }
}

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/everything.hpp>
#include <weft/mr/shared_words.hpp>
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/engine_parts.hpp>
#include <weft/net/iwarp/wire.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace weft::net::iwarp {
namespace {

constexpr std::size_t trailer_bytes = early_segment::max_trailer_bytes;
constexpr std::size_t word_bytes = sizeof(std::uint64_t);
// A batch with this much room can take a part of any request, and at least one word of a write.
constexpr std::size_t message_room_bytes =
    mpa::length_bytes + untagged_header::bytes + word_bytes + engine::inline_bytes + trailer_bytes;
constexpr std::size_t message_room_segments = 3;

/// The largest payload of an FPDU that is not the last of its message: a multiple of eight, which keeps copies aligned.
std::size_t payload_limit(std::size_t max_ulpdu, std::size_t header_bytes) noexcept {
  return (max_ulpdu - header_bytes) & ~std::size_t{7};
}

/// Shortens the payload of an FPDU that is not the last one, so that it ends at a word boundary of the memory at
/// `offset`. A word split over two FPDUs would be read or written in two parts.
std::size_t without_a_cut_word(std::uint64_t offset, std::size_t bytes) noexcept {
  assert(bytes >= word_bytes);
  return bytes - static_cast<std::size_t>((offset + bytes) % word_bytes);
}

/// Whether a peer may change the memory while it is being sent. Memory in everything() may be in another region, too.
bool may_change(const mr::slice& source) noexcept {
  constexpr mr::usage changing = mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window;
  return mr::overlaps(source.usage(), changing) ||
         (source.record() != nullptr && mr::is_everything(source.record()->bytes));
}

opcode opcode_of(const request& request) noexcept {
  if (request.kind == request_kind::write) return opcode::write;
  if (request.kind == request_kind::read) return opcode::read_request;
  if (request.kind == request_kind::send) return opcode::send;
  return opcode::send_with_invalidate;
}

std::span<std::byte, untagged_header::bytes> untagged_at(std::byte* place) noexcept {
  return std::span<std::byte, untagged_header::bytes>(place, untagged_header::bytes);
}

std::span<std::byte, tagged_header::bytes> tagged_at(std::byte* place) noexcept {
  return std::span<std::byte, tagged_header::bytes>(place, tagged_header::bytes);
}

/// An atomic request without masks. The fields that a fetch_add does not use have the values of RFC 7306 section 5.2.1.
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

}  // namespace

void engine::take_turns() noexcept {
  if (in_message_ && !interleave_) return;
  const lane other = lane_ == lane::requests ? lane::responses : lane::requests;
  if (is_ready(other) && (lane_bytes_left_ == 0 || !is_ready(lane_))) {
    lane_ = other;
    lane_bytes_left_ = fair_share_bytes;
  }
}

// Flattened, because it runs for each message.
[[gnu::flatten]] bool engine::gather(output_batch& batch) noexcept {
  assert(batch.empty() && gathered_ == sent_);
  batch.clear();
  while (!batch.is_full() && gather_fpdu(batch)) {
  }
  return !batch.empty();
}

bool engine::gather_fpdu(output_batch& batch) noexcept {
  if (batch.storage_room() < message_room_bytes || batch.segment_room() < message_room_segments) return false;
  if (!open_) return terminate_due_ && gather_terminate(batch);
  take_turns();
  if (!is_ready(lane_)) return false;
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
  const bool begins = !std::exchange(request.started_, true);
  if (begins && request.total_ <= std::min(inline_bytes, payload_limit(max_ulpdu_, header_bytes))) {
    return gather_small(batch, request, op);
  }

  const auto start = batch.here();
  std::byte* const header = batch.append(mpa::length_bytes + header_bytes) + mpa::length_bytes;
  const std::uint64_t offset = request.done_;
  const std::size_t payload_bytes = gather_payload(batch, request, payload_limit(max_ulpdu_, header_bytes));
  request.done_ += payload_bytes;
  const bool complete = request.done_ == request.total_;

  if (is_write) {
    // A long write may be split into several Write messages to let responses pass: nothing in RDMAP depends on their
    // boundaries. A weft peer without interleaving (profile::interop) counts each of them as a write, though.
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

void engine::gather_small(output_batch& batch, request& request, opcode op) noexcept {
  pack_small(batch, request, op);
  request.done_ = request.total_;
  if (!request.immediate) finish_gathering(request);
}

bool engine::may_take_now(const output_batch* batch, std::size_t bytes) const noexcept {
  // mutant: at once ahead of those that were posted
  const bool may_send = open_ && (initiator_ || heard_) && requests_.empty() && !in_message_;
  if (is_ready(lane::responses)) return false;  // mutant: keep responses from
  if (!may_send || bytes > std::min(inline_bytes, payload_limit(max_ulpdu_, untagged_header::bytes))) return false;
  return batch == nullptr || (batch->storage_room() >= message_room_bytes && batch->segment_room() > 0);
}

void engine::take_now(output_batch& batch, request& item) noexcept {
  if (batch.empty()) batch.clear();
  item.total_ = item.tail.size() + mr::detail::total_size(item.local);
  const opcode op = opcode_of(item);
  if (op != opcode::write) item.sequence_ = next_send_sequence_++;
  pack_small(batch, item, op);
}

// Gathers a message of one FPDU, and copies its payload, so that the FPDU is contiguous in the batch's storage.
void engine::pack_small(output_batch& batch, const request& request, opcode op) noexcept {
  const bool is_write = op == opcode::write;
  const std::size_t header_bytes = is_write ? tagged_header::bytes : untagged_header::bytes;
  const std::size_t ulpdu_bytes = header_bytes + static_cast<std::size_t>(request.total_);
  const std::size_t bytes = mpa::fpdu_bytes(ulpdu_bytes);
  std::byte* const front = batch.append(bytes);
  std::byte* const header = front + mpa::length_bytes;
  store_be(front, static_cast<std::uint16_t>(ulpdu_bytes));
  if (is_write) {
    encode(tagged_header{.opcode = op, .stag = request.stag, .offset = request.offset}, tagged_at(header));
  } else {
    encode(untagged_header{.opcode = op,
                           .invalidate_stag = invalidates(op) ? request.stag : 0,
                           .queue = send_queue,
                           .sequence = request.sequence_},
           untagged_at(header));
  }
  std::byte* place = header + header_bytes;
  const auto copy = [&](std::span<const std::byte> piece) {
    if (!piece.empty()) std::memcpy(place, piece.data(), piece.size());
    place += piece.size();
  };
  for (const mr::slice& piece : request.local) copy(piece.bytes());
  copy(request.tail);
  std::byte* const crc = front + bytes - mpa::crc_bytes;
  while (place != crc) *place++ = std::byte{0};
  mpa::store_crc(crc, crc_ ? crc32c_of(std::span(front, crc)) : 0);

  in_message_ = false;
  count_gathered(bytes);
}

void engine::gather_immediate(output_batch& batch) noexcept {
  request& write = *next_;
  write.sequence_ = next_send_sequence_++;
  gather_whole(batch, encode_message({.opcode = opcode::immediate, .sequence = write.sequence_},
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
  std::size_t gathered = gather_pieces(batch, request, limit);
  // The batch is full, and the payload would end within a word. A shorter payload may be cut within a word once more,
  // because its last piece, once referred to, may have become so small that it is copied, and find no room.
  while (gathered != limit && (offset + gathered) % word_bytes != 0) {
    batch.rewind(start);
    request.at_ = from;
    limit = without_a_cut_word(offset, gathered);
    gathered = gather_pieces(batch, request, limit);
  }
  return gathered;
}

std::size_t engine::gather_pieces(output_batch& batch, request& request, std::size_t limit) noexcept {
  std::size_t gathered = 0;
  while (gathered < limit && batch.segment_room() > 1) {  // one segment is for the trailer
    auto piece = piece_at(request, request.at_, limit - gathered);
    const bool is_tail = request.at_.segment == request.local.size();
    // If memory may change before it is sent, checksum and payload come from one copy, or they might not match.
    // mutant: send what may have changed
    const bool by_copy = crc_ && !is_tail && may_change(request.local[request.at_.segment]);
    if (piece.size() > inline_bytes && !by_copy) {
      batch.refer(piece);
    } else {
      const std::size_t room = batch.storage_room() - std::min(batch.storage_room(), trailer_bytes);
      if (by_copy) piece = piece.first(std::min(piece.size(), room));
      if (piece.empty() || piece.size() > room) break;
      if (by_copy)
        mr::load_shared(piece, {batch.append(piece.size()), piece.size()});
      else
        batch.append(piece);
    }
    request.at_.offset += piece.size();
    gathered += piece.size();
  }
  return gathered;
}

void engine::gather_query(output_batch& batch) noexcept {
  request& query = *next_;
  query.started_ = true;
  query.sequence_ = next_read_sequence_++;
  queries_.push(query);
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

// Gathers a message of one small FPDU.
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
  next_ = requests_.after(request);
}

bool engine::gather_response(output_batch& batch) noexcept {
  incoming_request& first = incoming_.front();
  if (auto* const read = std::get_if<read_request>(&first.asked))
    return gather_read_response(batch, first.sequence, *read);
  gather_atomic_response(batch, first.sequence, std::get<atomic_request>(first.asked));
  return true;
}

// The operation is executed here and not on arrival, because the responses to earlier reads must not see it.
void engine::gather_atomic_response(output_batch& batch, std::uint32_t sequence, const atomic_request& asked) noexcept {
  atomic_response response{.id = asked.id};
  const access_status status = host_.remote_atomic(asked, response.previous);
  if (status != access_status::ok) return refuse_atomic(encode_query(sequence, asked), asked, status);
  gather_whole(batch, encode_message({.opcode = opcode::atomic_response,
                                      .queue = atomic_response_queue,
                                      .sequence = next_atomic_response_sequence_++},
                                     response));
  incoming_.pop();
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
      refuse_read(encode_query(sequence, read), read, status);
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
  if (!in_message_) incoming_.pop();
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

  count_gathered(mpa::fpdu_bytes(ulpdu_bytes));
}

void engine::count_gathered(std::size_t bytes) noexcept {
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
}

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/engine_parts.hpp>
#include <weft/net/iwarp/wire.hpp>
#include <weft/net/software/kernel_copy.hpp>

#include <atomic>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace weft::net::iwarp {

using software::copy_into;

// Flattened, because it runs for each FPDU. The texts for a peer that breaks the rules are kept out of line.
[[gnu::flatten]] std::size_t engine::consume(std::span<const std::byte> bytes, std::size_t budget_bytes) noexcept {
  std::size_t used = 0;
  while (open_ && !needs_receive_ && used < budget_bytes) {
    const auto rest = bytes.subspan(used);
    if (early_.is_active()) {
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
  return open_ ? used : bytes.size();  // bytes behind the end are dropped: RFC 5041 section 7.1
}

bool engine::handle_fpdu(std::span<const std::byte> fpdu, std::size_t ulpdu_bytes) noexcept {
  const std::size_t covered = fpdu.size() - mpa::crc_bytes;
  if (crc_ && !require_crc(&fpdu[covered], crc32c_of(fpdu.first(covered)), fpdu.size())) return true;
  is_first_ = !std::exchange(heard_, true);
  return handle_ulpdu(fpdu.subspan(mpa::length_bytes, ulpdu_bytes));
}

bool engine::require_crc(const std::byte* field, std::uint32_t computed, std::size_t fpdu_bytes) noexcept {
  const std::uint32_t carried = mpa::load_crc(field);
  if (carried == computed) return true;  // mutant: take an FPDU for whole
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
  refuse_write(ulpdu, payload.size(), header, status);
}

access_status engine::write(std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> payload) noexcept {
  std::atomic_thread_fence(std::memory_order_release);  // whoever sees this write sees those before it
  for (;;) {
    const write_target target = host_.find_write_target(stag, offset, payload.size());
    if (target.status != access_status::ok) return target.status;
    if (!target.may_shrink) {
      mr::store_shared(target.memory, payload.first(target.memory.size()));
    } else if (!copy_into(target.memory, payload.first(target.memory.size()), target.words)) {
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
  if (queries_.empty() || is_atomic(queries_.front().kind))
    return terminate(cause::unexpected_opcode, ulpdu, words::format("a read response without a read"));
  request& read = queries_.front();
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
  if (header.last) finish_query();
}

void engine::fill_read(request& read, std::span<const std::byte> payload) noexcept {
  read.done_ += payload.size();
  while (!payload.empty()) {
    const auto piece = piece_at(read, read.at_, payload.size());
    std::memcpy(piece.data(), payload.data(), piece.size());
    read.at_.offset += piece.size();
    payload = payload.subspan(piece.size());
  }
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
  if (fixed && !require_message(header, ulpdu, immediate_data::bytes, expected_send_)) return true;
  if (!take_receive()) {
    needs_receive_ = true;
    return false;
  }
  if (fixed) return deliver(header, ulpdu, ulpdu.size()), true;
  const std::span<std::byte> room = receives_.front().buffer.subspan(message_bytes_);
  if (payload.size() > room.size())
    return terminate(cause::untagged_too_long, ulpdu,
                     words::format("a message of %zu bytes or more, the receive has room for %zu",
                                   message_bytes_ + payload.size(), receives_.front().buffer.size())),
           true;
  const bool stays = in_place_ && header.last && !message_begun_;
  if (!payload.empty() && !stays) std::memcpy(room.data(), payload.data(), payload.size());
  message_bytes_ += payload.size();
  message_begun_ = true;
  message_opcode_ = header.opcode;
  if (header.last) deliver(header, ulpdu, ulpdu.size(), stays ? payload : std::span<const std::byte>());
  return true;
}

bool engine::take_receive() noexcept {
  if (!receives_.empty()) return true;
  receive_request* const taken = host_.take_receive();
  if (taken == nullptr) return false;
  receives_.push(*taken);
  return true;
}

void engine::deliver(const untagged_header& header, std::span<const std::byte> front, std::size_t ulpdu_bytes,
                     std::span<const std::byte> in_place) noexcept {
  received_info info{.bytes = message_bytes_, .in_place = in_place};
  if (is_immediate(header.opcode)) info.immediate = load_be<std::uint32_t>(&front[untagged_header::bytes]);
  if (invalidates(header.opcode)) {
    const access_status status = host_.invalidate(header.invalidate_stag);
    if (status != access_status::ok) return refuse_invalidation(front, ulpdu_bytes, header.invalidate_stag, status);
    info.invalidated_stag = header.invalidate_stag;
  }
  receive_request& receive = receives_.pop();
  ++expected_send_;
  message_bytes_ = 0;
  message_begun_ = false;
  delivered_ = front;
  delivered_bytes_ = ulpdu_bytes;
  host_.received(receive, info);
  delivered_ = {};
}

bool engine::require_message(const untagged_header& header, std::span<const std::byte> ulpdu, std::size_t body_bytes,
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

bool engine::require_request(const untagged_header& header, std::span<const std::byte> ulpdu,
                             std::size_t body_bytes) noexcept {
  if (!require_message(header, ulpdu, body_bytes, expected_read_)) return false;
  if (!incoming_.is_full()) return true;
  terminate(cause::untagged_no_buffer, ulpdu,
            words::format("more than the %" PRIu32 " outstanding reads agreed on", incoming_.size()));
  return false;
}

void engine::accept(const incoming_request& incoming) noexcept {
  ++expected_read_;
  incoming_.push(incoming);
}

void engine::handle_read_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (!require_request(header, ulpdu, read_request::bytes)) return;
  const read_request read = parse_read_request(ulpdu.last<read_request::bytes>());
  const access_status status = read.size == 0 ? access_status::ok
                               : wraps(read.source_offset, read.size)
                                   ? access_status::wrap
                                   : host_.check_read(read.source_stag, read.source_offset, read.size);
  if (status != access_status::ok) return refuse_read(ulpdu, read, status);
  accept({.sequence = header.sequence, .asked = read});
}

void engine::handle_atomic_request(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (!require_request(header, ulpdu, atomic_request::bytes)) return;
  const atomic_request asked = parse_atomic_request(ulpdu.last<atomic_request::bytes>());
  if (asked.operation != atomic_operation::fetch_add && asked.operation != atomic_operation::compare_swap)
    return terminate(cause::unexpected_opcode, ulpdu,
                     words::format("atomic operation %u", static_cast<unsigned>(asked.operation)));
  const access_status status =
      wraps(asked.offset, sizeof(std::uint64_t)) ? access_status::wrap : host_.check_atomic(asked.stag, asked.offset);
  if (status != access_status::ok) return refuse_atomic(ulpdu, asked, status);
  accept({.sequence = header.sequence, .asked = asked});  // mutant: execute an atomic operation
}

void engine::handle_atomic_response(const untagged_header& header, std::span<const std::byte> ulpdu) noexcept {
  if (ready_response_due_ || queries_.empty() || !is_atomic(queries_.front().kind))
    return terminate(cause::unexpected_opcode, ulpdu, words::format("an atomic response without an atomic operation"));
  if (!require_message(header, ulpdu, atomic_response::bytes, expected_atomic_response_)) return;
  const atomic_response response = parse_atomic_response(ulpdu.last<atomic_response::bytes>());
  if (response.id != queries_.front().sequence_)
    return terminate(cause::operation_unspecified, ulpdu,
                     words::format("an atomic response to operation %" PRIu32 ", where %" PRIu32 " is due", response.id,
                                   queries_.front().sequence_));
  ++expected_atomic_response_;
  std::memcpy(queries_.front().tail.data(), &response.previous, sizeof response.previous);
  finish_query();
}

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/engine_parts.hpp>

#include <algorithm>
#include <cstring>

namespace weft::net::iwarp {

bool engine::is_next_response(const tagged_header& header, std::size_t payload_bytes) const noexcept {
  if (ready_response_due_ || queries_.empty() || is_atomic(queries_.front().kind)) return false;
  const std::uint64_t left = queries_.front().total_ - queries_.front().done_;
  return header.stag == queries_.front().sink_stag_ && header.offset == queries_.front().done_ &&
         payload_bytes <= left && header.last == (payload_bytes == left);
}

bool engine::is_next_segment(const untagged_header& header) const noexcept {
  return !ready_send_due_ && is_send(header.opcode) && header.queue == send_queue &&
         header.sequence == expected_send_ && header.offset == message_bytes_ &&
         (!message_begun_ || header.opcode == message_opcode_);
}

// Approves only segments that are valid. The others are taken whole, so that consume() reports what is wrong.
bool engine::may_place_early(std::span<const std::byte> front, std::size_t ulpdu_bytes) const noexcept {
  const control control = parse_control(front.first<control_bytes>());
  if (control.ddp_version != ddp_version || control.rdmap_version != rdmap_version) return false;
  if (!control.tagged) return is_next_segment(parse_untagged(front.first<untagged_header::bytes>()));
  const tagged_header header = parse_tagged(front.first<tagged_header::bytes>());
  const std::size_t payload_bytes = ulpdu_bytes - tagged_header::bytes;
  if (header.opcode == opcode::read_response) return is_next_response(header, payload_bytes);
  return header.opcode == opcode::write && payload_bytes > place_early_bytes_ && !wraps(header.offset, payload_bytes) &&
         host_.find_write_target(header.stag, header.offset, payload_bytes).status == access_status::ok;
}

// Begins to place a segment, and returns how many bytes it has taken; 0 if the segment has to arrive whole.
std::size_t engine::begin_early(std::span<const std::byte> bytes, std::size_t ulpdu_bytes) noexcept {
  if (bytes.size() < mpa::length_bytes + untagged_header::bytes) return 0;
  if (mpa::fpdu_bytes(ulpdu_bytes) - bytes.size() < place_early_bytes_) return 0;
  const auto front = bytes.subspan(mpa::length_bytes);
  if (!may_place_early(front, ulpdu_bytes)) return 0;

  const control control = parse_control(front.first<control_bytes>());
  if (!control.tagged) {
    const std::size_t payload_bytes = ulpdu_bytes - untagged_header::bytes;
    if (!take_receive() || payload_bytes > receives_.front().buffer.size() - message_bytes_) return 0;
    message_begun_ = true;
    message_opcode_ = control.opcode;
  }
  return early_.begin(bytes, ulpdu_bytes, control.tagged);
}

std::size_t engine::continue_early(std::span<const std::byte> bytes) noexcept {
  if (early_.payload_left() == 0) {
    const std::size_t taken = early_.take_trailer(bytes);
    if (!early_.is_active()) finish_early();
    return taken;
  }
  const auto payload = bytes.first(std::min(bytes.size(), early_.payload_left()));
  const access_status status = place_early(payload);
  if (status == access_status::ok)
    early_.advance(payload);
  else
    refuse_early_write(status);
  return payload.size();
}

access_status engine::place_early(std::span<const std::byte> payload) noexcept {
  if (!early_.is_tagged()) {
    std::memcpy(&receives_.front().buffer[message_bytes_], payload.data(), payload.size());
    message_bytes_ += payload.size();
    return access_status::ok;
  }
  const tagged_header header = early_.tagged();
  if (header.opcode == opcode::write) return write(header.stag, header.offset + early_.payload_done(), payload);
  fill_read(queries_.front(), payload);
  return access_status::ok;
}

std::span<std::byte> engine::placement() noexcept {
  if (early_.payload_left() == 0) return {};
  std::span<std::byte> place;
  if (!early_.is_tagged()) {
    place = receives_.front().buffer.subspan(message_bytes_, early_.payload_left());
  } else if (const tagged_header header = early_.tagged(); header.opcode == opcode::write) {
    const write_target target =
        host_.find_write_target(header.stag, header.offset + early_.payload_done(), early_.payload_left());
    if (target.status != access_status::ok) return refuse_early_write(target.status), std::span<std::byte>();
    if (target.may_shrink) return {};
    place = target.memory;
  } else {
    request& read = queries_.front();
    place = piece_at(read, read.at_, early_.payload_left());
  }
  early_.expect_at(place.data());
  return place;
}

void engine::placed(std::size_t bytes) noexcept {
  if (bytes == 0) return;
  early_.advance_in_place(bytes);
  if (!early_.is_tagged()) {
    message_bytes_ += bytes;
  } else if (early_.control().opcode == opcode::read_response) {
    request& read = queries_.front();
    read.done_ += bytes;
    read.at_.offset += bytes;
  }
}

void engine::finish_early() noexcept {
  if (crc_ && !require_crc(early_.crc_field(), early_.computed_crc(), early_.fpdu_bytes())) return;
  heard_ = true;
  const control control = early_.control();
  if (!control.tagged) {
    if (control.last) deliver(early_.untagged(), early_.header(), early_.ulpdu_bytes());
  } else if (control.opcode == opcode::write) {
    write_begun_ = !control.last;
    if (control.last) host_.written(early_.tagged().stag);
  } else if (control.last) {
    finish_query();
  }
}

void engine::refuse_early_write(access_status status) noexcept {
  refuse_write(early_.header(), early_.payload_bytes(), early_.tagged(), status, early_.ulpdu_bytes());
}

}  // namespace weft::net::iwarp

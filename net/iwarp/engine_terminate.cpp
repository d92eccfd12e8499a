// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/engine_parts.hpp>

#include <algorithm>
#include <cinttypes>
#include <optional>

namespace weft::net::iwarp {
namespace {

/// The code for a refused Write. DDP has no code for missing rights, which get the closest one, as with siw.
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

words closed_with_operations() noexcept {
  return words::format("the peer closed the connection while operations were outstanding");
}

words describe(const char* verb, std::uint64_t bytes, std::uint32_t stag, std::uint64_t offset, access_status status,
               bool is_late) noexcept {
  const char* const reason = is_late ? "a key that this end has revoked" : reason_of(status);
  return words::format("the peer tried to %s %" PRIu64 " bytes at offset 0x%" PRIx64 " of STag 0x%08" PRIx32 ": %s",
                       verb, bytes, offset, stag, reason);
}

}  // namespace

// The place in the peer's memory to which the peer refused access. Its request may have completed, because a write
// completes once TCP has taken it, long before the peer refuses it.
struct engine::refused_place {
  const char* verb;
  std::uint32_t stag;
  std::uint64_t offset;
};

void engine::handle_terminate(std::span<const std::byte> ulpdu) noexcept {
  auto message = parse_terminate(ulpdu.subspan(untagged_header::bytes));
  if (!message) return end(ending_reason::peer_terminated, std::nullopt, words::format("peer terminated the stream"));

  // siw writes the bit fields in reverse. In a message without headers, two of its causes then look like refusals of
  // the set-up. Only an initiator may send such a refusal, in its first FPDU; elsewhere, undo the reversal.
  const bool may_refuse_set_up = !initiator_ && is_first_;
  if (!may_refuse_set_up &&
      (message->code == cause::insufficient_ird || message->code == cause::no_common_ready_signal))
    message->code = {.layer = 0, .type = 2, .code = message->code.code};

  const std::optional<refused_place> where = place_of(*message);
  for (request* request = requests_.first(); request != nullptr; request = requests_.after(*request)) {
    request->blamed_ = names(*message, *request);
    request->bystander_ = where && has_place(request->kind) && request->stag != where->stag;
  }
  const words why = describe(message->code);
  if (where) refused_stag_ = where->stag;
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
  for (const request* item = requests_.first(); item != nullptr; item = requests_.after(*item)) {
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

// Notes the key, and whether this end has revoked it, because then the peer may not have known.
void engine::note_refusal(std::uint32_t stag, access_status status) noexcept {
  refused_stag_ = stag;
  late_access_ = status == access_status::invalid_stag && host_.was_revoked(stag);
}

void engine::refuse_write(std::span<const std::byte> ulpdu, std::size_t payload_bytes, const tagged_header& header,
                          access_status status, std::size_t ulpdu_bytes) noexcept {
  note_refusal(header.stag, status);
  terminate(write_cause(status), ulpdu,
            describe("write", payload_bytes, header.stag, header.offset, status, late_access_), std::nullopt,
            ulpdu_bytes);
}

void engine::refuse_read(std::span<const std::byte> ulpdu, const read_request& read, access_status status) noexcept {
  note_refusal(read.source_stag, status);
  terminate(read_cause(status), ulpdu,
            describe("read", read.size, read.source_stag, read.source_offset, status, late_access_), read);
}

void engine::refuse_atomic(std::span<const std::byte> ulpdu, const atomic_request& asked,
                           access_status status) noexcept {
  note_refusal(asked.stag, status);
  terminate(read_cause(status), ulpdu,
            describe("change", sizeof(std::uint64_t), asked.stag, asked.offset, status, late_access_));
}

void engine::refuse_invalidation(std::span<const std::byte> ulpdu, std::size_t ulpdu_bytes, std::uint32_t stag,
                                 access_status status) noexcept {
  note_refusal(stag, status);
  terminate(status == access_status::access ? cause::cannot_invalidate : read_cause(status), ulpdu,
            words::format("the peer tried to invalidate STag 0x%08" PRIx32 "%s", stag,
                          late_access_ ? ": a key that this end has revoked" : ""),
            std::nullopt, ulpdu_bytes);
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
  // RFC 5044 section 7.1.2, rule 4: a responder sends nothing before it has received a valid FPDU.
  terminate_due_ = initiator_ || heard_;
  end(ending_reason::terminated, code, words::format("terminated the stream: %s", why.c_str()));
}

void engine::refuse(terminate_code code, const words& why) noexcept {
  if (open_) terminate(code, delivered_, why, std::nullopt, delivered_bytes_);
}

void engine::abort(const words& why) noexcept {
  if (open_) end(ending_reason::aborted, std::nullopt, why);
}

void engine::end_of_stream(std::size_t unconsumed_bytes) noexcept {
  if (!open_) return;
  if (early_.is_active()) unconsumed_bytes += early_.bytes_done();
  if (unconsumed_bytes != 0)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection %zu bytes into an FPDU", unconsumed_bytes));
  if (message_begun_ || write_begun_)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection in the middle of a message"));
  const bool in_vain = half_close_ ? waits_for_an_answer() : !requests_.empty();
  if (in_vain || reads_in_flight_ != 0)
    return end(ending_reason::connection_lost, std::nullopt, closed_with_operations());
  if (half_close_ && !output_over_) {
    input_over_ = true;
    return host_.input_over();
  }
  if (!incoming_.empty() || gathered_ != sent_)
    return end(ending_reason::connection_lost, std::nullopt,
               words::format("the peer closed the connection before this end had answered its reads"));
  end(ending_reason::peer_closed, std::nullopt, words::format("the peer closed the connection"));
}

// Whether a request is posted that needs an answer from the peer.
bool engine::waits_for_an_answer() const noexcept {
  for (const request* item = requests_.first(); item != nullptr; item = requests_.after(*item)) {
    if (is_query(item->kind)) return true;
  }
  return false;
}

void engine::end_of_output() noexcept {
  output_over_ = true;
  if (open_ && input_over_)
    end(ending_reason::peer_closed, std::nullopt, words::format("the peer closed the connection"));
}

void engine::abandon(output_batch& batch) noexcept {
  if (open_) end(ending_reason::aborted, std::nullopt, words::format("the connection's output was abandoned"));
  batch.clear();
  sent_ = gathered_;
  terminate_due_ = false;  // it would land in the middle of an FPDU
  flush();
}

void engine::end(ending_reason reason, std::optional<terminate_code> code, const words& why) noexcept {
  open_ = false;
  needs_receive_ = false;
  next_ = nullptr;
  queries_.clear();
  reads_in_flight_ = 0;
  incoming_.clear();
  early_.cancel();
  host_.ended(
      {.reason = reason, .code = code, .text = why, .late_access = late_access_, .refused_stag = refused_stag_});
  flush();
}

}  // namespace weft::net::iwarp

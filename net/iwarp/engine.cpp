// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/engine.hpp>

#include <cassert>

namespace weft::net::iwarp {

engine::engine(engine_host& host, const engine_options& options)
    : host_(host),
      initiator_(options.initiator),
      crc_(options.crc),
      interleave_(options.interleave),
      atomics_(options.atomics),
      immediate_(options.immediate),
      half_close_(options.half_close),
      in_place_(options.in_place),
      ord_(options.ord),
      place_early_bytes_(std::max(options.place_early_bytes, early_segment::max_trailer_bytes + 1)),
      ready_send_due_(!options.initiator && options.signal_is_send),
      next_sink_stag_(options.sink_stag_seed),
      next_send_sequence_(options.first_sequence),
      next_read_sequence_(options.first_sequence),
      next_atomic_response_sequence_(options.first_sequence),
      lane_bytes_left_(fair_share_bytes),
      expected_send_(options.first_sequence),
      expected_read_(options.first_sequence),
      expected_atomic_response_(options.first_sequence),
      early_(options.crc),
      incoming_(options.ird) {
  limit_ulpdu(options.max_ulpdu);
  if (!options.initiator || !options.signal_was_read) return;
  ++next_read_sequence_;
  ++reads_in_flight_;
  ready_response_due_ = true;
}

engine::~engine() { assert(requests_.empty() && receives_.empty()); }

bool engine::post(request& request) noexcept {
  const std::uint64_t total = request.tail.size() + mr::detail::total_size(request.local);
  if (total > max_message_bytes || (is_query(request.kind) && ord_ == 0)) return false;
  if (request.immediate && !(immediate_ && request.kind == request_kind::write)) return false;
  const bool has_word = request.local.empty() && total == sizeof(std::uint64_t);
  if (is_atomic(request.kind) && !(atomics_ && has_word)) return false;

  request.total_ = total;
  request.done_ = 0;
  request.at_ = {};
  request.started_ = request.gathered_ = request.answered_ = request.blamed_ = request.bystander_ = false;
  requests_.push(request);
  if (!open_) return flush(), true;
  if (next_ == nullptr) next_ = &request;
  if (input_over_ && is_query(request.kind)) [[unlikely]]
    end(ending_reason::connection_lost, std::nullopt,
        words::format("the peer can answer nothing more: it has closed its direction"));
  return true;
}

void engine::post_receive(receive_request& receive) noexcept {
  receives_.push(receive);
  needs_receive_ = false;
  if (!open_) flush();
}

void engine::finish_query() noexcept {
  queries_.pop().answered_ = true;
  --reads_in_flight_;
  retire();
}

bool engine::is_released(const request& request) const noexcept {
  return !request.started_ || gathered_ == sent_ || (request.gathered_ && request.end_ <= sent_);
}

void engine::retire() noexcept {
  while (open_ && !requests_.empty()) {
    const request& first = requests_.front();
    const bool is_sent = first.gathered_ && first.end_ <= sent_;         // mutant: complete a read before
    if (!is_sent || (is_query(first.kind) && !first.answered_)) return;  // mutant: resume a waiter
    complete_first({.status = completion_status::ok, .bytes = first.total_});
  }
}

void engine::complete_first(const completion& completion) noexcept { host_.completed(requests_.pop(), completion); }

void engine::flush() noexcept {
  while (!requests_.empty() && is_released(requests_.front())) {
    completion_status status = completion_status::flushed;
    if (requests_.front().bystander_) status = completion_status::bystander;
    if (requests_.front().blamed_) status = completion_status::remote_access_error;
    complete_first({.status = status, .bytes = 0});
  }
  while (!receives_.empty()) host_.flushed(receives_.pop());
}

}  // namespace weft::net::iwarp

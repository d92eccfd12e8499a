// SPDX-License-Identifier: Apache-2.0
// The part of sending that concerns groups: batches and lists.
#include <weft/net/connection/refusal.hpp>
#include <weft/net/connection/sending.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <optional>

namespace weft::net {

using weft::detail::make_error;

void sending::start(batch_operation& all) {
  all.unfinished_ = all.members_.size() + 1;  // one more, so that the batch cannot end before all are enqueued
  all.refused_ = prepare(all);
  if (all.refused_) return all.finish();
  for (transfer& item : all.members_) enqueue(item);
  pump();
  for (const transfer& item : all.members_) count_wait(item);
  all.member_ended();
  order_.note();
}

std::optional<error> sending::prepare(batch_operation& all) const {
  if (!all.claim_members()) {
    return error(errc::invalid_argument,
                 "a batch needs operations of its own connection that were not used before, each only once");
  }
  const auto refused =
      std::find_if(all.members_.begin(), all.members_.end(), [&](transfer& item) { return !prepare(item); });
  if (refused == all.members_.end()) return std::nullopt;
  const error why = *refused->failure_;
  for (transfer& item : all.members_) {
    item.let_go();
    item.failure_ = why;
  }
  return why;
}

void sending::start(list_operation& all) {
  transfer& element = all.element_;
  all.failure_ = check(all);
  element.spent_ = true;
  if (all.failure_ || all.size() == 0) {
    all.finish();
    return order_.note();
  }
  element.role_ = transfer::role::element;
  all.is_open_ = true;
  all.is_run_ = !element.is_staged_ && state_.link().takes_runs();
  element.batch_ = &all;
  set_room_for(all);
  all.hold();
  enqueue(element);
  pump();
  count_wait(element);
}

std::optional<error> sending::check(list_operation& all) const {
  transfer& element = all.element_;
  if (element.spent_) return error(errc::invalid_argument, "a list was awaited before");
  if (executor_core::current() != &state_.home) return error(errc::wrong_thread, "a list of operations");
  if (state_.has_ended()) return state_.why_ended();
  const std::size_t count = all.size();
  if (count == 0 && !all.how_.immediate) return std::nullopt;
  if (count == 0)
    return error(errc::invalid_argument, "an empty list cannot notify the peer (write_options::immediate)");
  if (all.is_of_blocks_) {
    if (auto refused = all.check_blocks()) return refused;
  }
  // The same checks apply to all blocks of a list, and only the last block may carry immediate data: it alone is
  // checked.
  const std::size_t first = all.is_of_blocks_ ? count - 1 : 0;
  bool is_beyond_here = false;
  bool is_behind_owner = false;
  for (std::size_t i = first; i != count;) {
    all.load(i);
    const refusal reasons(element, state_);
    const refusal::reason why = reasons.find();
    if (why != refusal::reason::none) return describe(all, i, reasons.explain(why), false);
    if (element.counter_ != 0) all.is_told_ = true;
    if (i == first) {
      is_beyond_here = is_beyond(element.one_);
      is_behind_owner = element.is_behind_owner_;
    }
    if (is_beyond(element.one_) != is_beyond_here || element.is_behind_owner_ != is_behind_owner) {
      const error mixed(errc::invalid_argument, "a list must not mix host memory and device memory at one end");
      return describe(all, i, mixed, false);
    }
    if (all.is_of_blocks_) break;
    const std::size_t end = all.end_of_like(i, state_.properties().max_message_bytes);
    if (i == 0) all.note_like(i, end);
    i = end;
  }
  element.is_staged_ = is_beyond_here || is_behind_owner;
  return std::nullopt;
}

void sending::carried_out(list_operation& all, std::optional<error> failure) noexcept {
  all.is_open_ = all.is_carried_ = false;
  if (failure) {
    counters_of(all.element_.kind_).failed.add(1);
    all.failure_ = describe(all, std::min(all.done(), all.size() - 1), *failure, true);
  }
  all.conclude();
  order_.note();
  if (all.is_told_) tell(all, 0, all.done());
}

// Decides when posting resumes: once there is room for a large portion, so that one doorbell serves many elements, or
// for all elements that are left.
void sending::set_room_for(list_operation& all) const noexcept {
  const std::size_t depth = state_.options.send_depth;
  all.goes_on_at_ = depth - std::min({depth, all.size() - all.posted_, std::max<std::size_t>(depth / 4, 1)});
}

// Once few enough operations are in flight (goes_on_at_), posts as many elements as there is room for. Returns true if
// any were posted. The list stays first in the queue while it has more elements.
bool sending::post_elements(list_operation& all) noexcept {
  if (all.is_posting_ || state_.statistics.in_flight.get() > all.goes_on_at_) return false;
  all.is_posting_ = true;  // because the link may complete elements at once, and so call pump()
  const std::size_t before = all.posted_;
  all.is_run_ ? post_run(all) : post_one_by_one(all);
  all.is_posting_ = false;
  counters_of(all.element_.kind_).posted.add(all.posted_ - before);
  if (all.is_open_) set_room_for(all);
  return all.posted_ != before;
}

void sending::post_one_by_one(list_operation& all) noexcept {
  transfer& element = all.element_;
  live_statistics::operations& counted = counters_of(element.kind_);
  const std::size_t count = all.size();
  std::uint64_t bytes = 0;
  while (all.is_open_) {
    all.load(all.posted_);
    if (!may_post(element)) break;  // mutant: post elements of a list
    ++all.posted_;
    ++all.under_way_;
    bytes += element.one_.size();
    if (all.posted_ == count) {
      unlink(element);
      all.is_open_ = false;
    }
    post_element(element, counted);
  }
  counted.bytes.add(bytes);
}

void sending::post_run(list_operation& all) noexcept {
  const run_portion what = next_portion(all);
  if (what.count != 0) {
    counters_of(what.kind == work_kind::write ? transfer_kind::write : transfer_kind::read)
        .bytes.add(all.bytes_of_next(what.count));
    all.posted_ += what.count;
    all.under_way_ += what.count;
    state_.statistics.in_flight.add(what.count);
    state_.statistics.begun(state_.home.coarse_now());
    if (what.immediate) ++state_.sent;
    if (all.posted_ == all.size()) {
      unlink(all.element_);
      all.is_open_ = false;
    }
    state_.link().post_run(all, what);
  }
  if (all.is_open_) all.load(all.posted_);  // the element that waits in the queue
}

// Elements of a run have no records, so only send_depth limits them. The last element may have to wait for a credit, if
// it has immediate data.
run_portion sending::next_portion(const list_operation& all) const noexcept {
  const std::size_t left = all.size() - all.posted_;
  const std::size_t room = state_.options.send_depth - state_.statistics.in_flight.get();
  run_portion what{.first = all.posted_, .count = std::min(left, room), .kind = work_kind_of(all.element_.kind_)};
  if (what.count != left || !all.how_.immediate) return what;
  if (!has_credit()) {
    --what.count;
  } else {
    what.immediate = all.how_.immediate;
  }
  return what;
}

// Like post(), for elements of a list, each with one piece of borrowed memory.
void sending::post_element(transfer& element, live_statistics::operations& counted) noexcept {
  operation_record& record = *std::exchange(free_, free_->next_free);
  state_.statistics.in_flight.add(1);
  state_.statistics.begun(state_.home.coarse_now());
  record.waiter = &element;
  record.counted = &counted;
  record.kind = work_kind_of(element.kind_);
  record.own = {};
  record.parts[0] = element.one_;
  record.segments = std::span(record.parts).first(1);
  record.borrowed = false;  // the list holds the regions
  record.remote_key = element.remote_key_;
  record.remote_address = element.remote_address_;
  if (element.names_.count != 0) [[unlikely]]
    name(record, element);
  record.immediate = element.how_.immediate;
  record.invalidate.reset();
  if (element.is_message()) ++state_.sent;
  state_.link().post(record);
}

void sending::run_advanced(work_run& run, std::size_t count, work_status status) noexcept {
  auto& all = static_cast<list_operation&>(run);
  if (status != work_status::done) [[unlikely]]
    elements_failed(all, count, status);
  const std::size_t place = all.posted_ - all.under_way_;
  state_.statistics.in_flight.subtract(count);
  state_.statistics.completed(state_.home.coarse_now());
  all.elements_ended(count);
  order_.note();
  if (all.is_told_ && status == work_status::done) [[unlikely]]
    tell(all, place, count);
  pump();
}

// Notifies the peer of completed elements, in order. Called after the list has released them, because posting a notice
// may complete more elements. The list still exists, because its waiter is resumed in a later turn.
[[gnu::noinline]] void sending::tell(list_operation& all, std::size_t first, std::size_t count) noexcept {
  if (all.is_of_blocks_) return notices_.note(all.counter_of(first), count);
  for (std::size_t i = first; i != first + count; ++i) notices_.note(all.counter_of(i), 1);
}

// Like failed(), for elements of a run. The oldest element in flight is the first that failed.
[[gnu::noinline]] void sending::elements_failed(list_operation& all, std::size_t count, work_status status) noexcept {
  const transfer& element = all.element_;
  counters_of(element.kind_).failed.add(count);
  all.has_failed_ = true;
  const std::size_t place = all.posted_ - all.under_way_;
  all.load(place);
  work_request what;
  what.kind = work_kind_of(element.kind_);
  what.remote_key = element.remote_key_;
  if (status == work_status::access_denied) refused_key_ = what.remote_key;
  if (!all.failure_) all.element_.failure_ = describe(all, place, why_failed(element, what, status), true);
}

void sending::stop(list_operation& all) noexcept {
  if (all.is_carried_) carrier_->stop(all);
  if (!all.is_open_) return;
  unlink(all.element_);
  const bool posted = all.posted_ != 0;
  if (!all.failure_) all.failure_ = describe(all, all.posted_, make_error(errc::canceled, "stopped"), posted);
  all.close();
  pump();  // the list may have held back other operations
}

void sending::abandon(list_operation& all) noexcept {
  if (all.is_open_) unlink(all.element_);
  all.is_open_ = false;
  if (all.under_way_ != 0 || all.is_carried_) {
    weft::detail::terminate_because("a task was destroyed in the middle of a list of operations on borrowed memory");
  }
  all.element_.state_ = transfer::state::idle;
  all.element_.batch_ = nullptr;
  all.let_go();
  pump();
}

// Begins with the last member, because stopping the first one would let the members behind it be posted.
void sending::stop(batch_operation& all) noexcept {
  for (std::size_t i = all.members_.size(); i > 0; --i) {
    transfer& item = all.members_[i - 1];
    if (item.state_ != transfer::state::idle) stop(item);
  }
}

void sending::abandon(batch_operation& all) noexcept {
  for (std::size_t i = all.members_.size(); i > 0; --i) {
    transfer& item = all.members_[i - 1];
    if (item.state_ != transfer::state::idle) abandon(item);
  }
}

error sending::describe(list_operation& all, std::size_t place, const error& why, bool posted) const noexcept try {
  all.load(place);
  const error text = describe(all.element_, why, posted);
  return text.within(fmt::format("element {} of a list of {}", place, all.size())).as_posted(posted);
} catch (const std::bad_alloc&) {
  return why.as_posted(posted);
}

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/sending.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace weft::net {

using weft::detail::make_error;

namespace {

// Slots of control messages; the slots of operations follow.
constexpr std::size_t other_control = 0;
constexpr std::size_t close_control = 1;

message_kind data_kind(const std::optional<std::uint32_t>& immediate) noexcept {
  return immediate ? message_kind::data_with_immediate : message_kind::data;
}

// The group of an operation that is left to the connection, because nobody waits for it.
class nobody final : public transfer_group {
 public:
  void member_ended() noexcept override {}
  [[nodiscard]] bool stopped() const noexcept override { return false; }
};

// True if a write or an atomic operation has changed the peer's memory.
bool has_written(const operation_record& record, work_status status) noexcept {
  return status == work_status::done && (record.kind != work_kind::compare_swap || record.answer == record.compare);
}

}  // namespace

work_kind work_kind_of(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return work_kind::send;
    case transfer_kind::write:
      return work_kind::write;
    case transfer_kind::read:
    case transfer_kind::flush:
      break;
    case transfer_kind::fetch_add:
      return work_kind::fetch_add;
    case transfer_kind::compare_swap:
      return work_kind::compare_swap;
    case transfer_kind::persist:
      return work_kind::flush;
  }
  return work_kind::read;
}

// ---- starting operations ----

sending::sending(connection_state& state, carrier_maker& maker)
    : state_(state),
      notices_(state, *this),
      carrier_maker_(maker),
      barrier_(nullptr, transfer_kind::send),
      order_(state.home) {
  barrier_.role_ = transfer::role::barrier;
}

// The carrier, which has been destroyed by now, has asserted that it is idle.
sending::~sending() { assert(waiting_.empty() && state_.statistics.in_flight.get() == 0); }

void sending::attach() {
  at_once_ = state_.link().takes_at_once();
  most_at_once_ = state_.link().most_at_once();
  operations_.emplace(state_.link(), depth());
  free_ = nullptr;  // any records in this list belonged to a previous link
}

void sending::link_started() noexcept {
  [[maybe_unused]] const bool made = make_operations();
  assert(made && "the table of operations had no room");
}

// Flattened, with rare cases kept out of line, because each operation runs through it.
[[gnu::flatten]] void sending::start(transfer& item) {
  if (!is_new(item)) [[unlikely]]
    return refuse_again(item);
  item.spent_ = true;
  if (!prepare(item)) [[unlikely]]
    return item.end();
  if (!waiting_.empty() || item.is_staged_ || !may_post(item)) [[unlikely]]
    return wait(item);
  post(item);
  state_.link().ring();
}

[[gnu::flatten]] taken sending::take_now(transfer& item, weft::detail::promise_base& waiter) noexcept {
  if (!is_new(item) || !item.may_end_at_once(waiter) || !take(item)) return taken::no;
  return order_.go_on(waiter);
}

bool sending::try_send(transfer& item) {
  if (item.borrowed_) {
    const error why(errc::invalid_argument, "try_send() takes buffers, because nobody waits until memory is let go");
    throw describe(item, why, false);
  }
  if (at_once_ && is_new(item) && take(item)) return true;
  if (!prepare(item)) throw *item.failure_;
  if (item.is_staged_) {
    throw describe(item, error(errc::not_supported, "the memory of a device is sent by send()"), false);
  }
  if (!waiting_.empty() || !may_post(item)) return item.pin_.reset(), false;
  nobody waiter;
  item.spent_ = true;
  item.batch_ = &waiter;
  post(item);
  state_.link().ring();
  item.batch_ = nullptr;
  if (item.state_ == transfer::state::posted) abandon(item);
  if (item.failure_) throw *item.failure_;
  return true;
}

// Carries the operation out at once. Returns false, without effect, if that is impossible, or the operation is refused.
[[gnu::flatten]] bool sending::take(transfer& item) noexcept {
  if (!is_clear() || !may_use(item)) return false;
  // Inlined twice, so that a send skips the checks that only other operations need.
  // NOLINTNEXTLINE(bugprone-branch-clone)
  return item.kind_ == transfer_kind::send ? take_one(item) : take_one(item);
}

bool sending::take_one(transfer& item) noexcept {
  const transfer_kind kind = item.kind_;
  const bool is_plain = item.has_memory() && !item.is_list_ && item.role_ == transfer::role::usual;
  if (!is_plain || item.one_.size() > most_at_once_) return false;
  if (kind == transfer_kind::read && !state_.link().may_read_at_once()) return false;
  const bool is_message = item.is_message();
  if (is_message && !has_credit()) return false;  // mutant: at once without a credit
  if (item.is_behind_owner_ || refusal(item, state_).find() != refusal::reason::none) return false;
  if (is_beyond(item.one_)) return false;
  work_request& work = now_;
  trailer::storage end;
  work.kind = work_kind_of(kind);
  work.segments = {&item.one_, 1};
  work.invalidate = item.how_.invalidate;
  work.immediate.reset();
  const bool has_trailer = kind == transfer_kind::send && state_.properties().native;
  work.own = has_trailer ? pack_trailer(end, data_kind(item.how_.immediate), item.how_.immediate.value_or(0))
                         : std::span<std::byte>();
  if (kind != transfer_kind::send) {
    work.immediate = item.how_.immediate;
    work.remote_key = item.remote_key_;
    work.remote_address = item.remote_address_;
  }
  if (!state_.link().take_now(work)) return false;
  item.spent_ = true;
  item.let_go();
  if (is_message) ++state_.sent;
  if (kind == transfer_kind::send) state_.offered = state_.receivable;
  live_statistics::operations& counted = counters_of(kind);
  counted.posted.add(1);
  counted.bytes.add(item.one_.size());
  return true;
}

// Starts an operation of the connection's own, ahead of waiting operations.
void sending::start_internal(transfer& item) {
  const bool is_over = state_.failure || state_.peer_closed;
  if (is_over) return item.fail(describe(item, state_.why_ended(), false));
  if (item.failure_) return item.end();
  if (item.is_staged_) return item.fail(describe(item, make_error(errc::protocol_error), false));
  enqueue_first(item);
  pump();
}

// Refuses an operation that is not new. Starts it instead if it is the connection's own. Throws the error instead of
// setting failure(), because a batch in progress may have this operation as a member.
[[gnu::noinline]] void sending::refuse_again(transfer& item) {
  if (item.is_internal()) return start_internal(item);
  const error why(errc::invalid_argument,
                  "the operation was awaited before, was moved from, or is or was a member of a batch");
  throw describe(item, why, false);
}

[[gnu::noinline]] void sending::wait(transfer& item) noexcept {
  enqueue(item);
  pump();
  count_wait(item);
}

// Checks all that can be checked before posting, and pins the memory. Returns false if the operation is refused;
// failure() has the reason.
bool sending::prepare(transfer& item) const {
  refusal::reason why = refusal(item, state_).find();
  if (why == refusal::reason::none && !take_pin(item)) why = refusal::reason::in_use;
  if (why != refusal::reason::none) [[unlikely]] {
    refuse(item, why);
    return false;
  }
  if (has_staged_part(item)) [[unlikely]]
    item.is_staged_ = true;
  return true;
}

bool sending::has_staged_part(const transfer& item) const noexcept {
  if (!item.has_memory()) return false;
  const auto parts = item.parts();
  return std::any_of(parts.begin(), parts.end(), [this](const mr::slice& part) { return is_beyond(part); });
}

bool sending::is_beyond(const mr::slice& memory) const noexcept {
  const mr::memory_record& record = *memory.record();
  if (record.device == nullptr) [[likely]]
    return false;
  return state_.carrier.agreed.rails || !record.is_within_reach_of(state_.carrier.fabric_number);
}

// Pins the operation's buffer; false if the buffer is in use. A consumed buffer needs no pin, because nobody else can
// return it to the pool. But it is refused while a read that was stopped may still write to it.
bool sending::take_pin(transfer& item) noexcept {
  mr::buffer* const memory = item.shared_;
  if (memory == nullptr) return !item.owned_ || mr::pin::may_share(item.owned_);
  item.pin_ = item.kind_ == transfer_kind::read ? mr::pin::try_exclusive(*memory) : mr::pin::try_share(*memory);
  return static_cast<bool>(item.pin_);
}

// True if take_pin() would succeed.
bool sending::may_use(const transfer& item) noexcept {
  if (item.shared_ == nullptr) return !item.owned_ || mr::pin::may_share(item.owned_);
  return item.kind_ == transfer_kind::read ? mr::pin::may_write(*item.shared_) : mr::pin::may_share(*item.shared_);
}

[[gnu::noinline]] void sending::refuse(transfer& item, refusal::reason why) const {
  item.failure_ = describe(item, refusal(item, state_).explain(why), false);
}

void sending::enqueue(transfer& item) noexcept {
  state_.statistics.waiting.add(1);
  state_.statistics.begun(state_.home.coarse_now());
  item.state_ = transfer::state::waiting;
  // A list holds the regions of its elements.
  if (item.borrowed_ && item.role_ != transfer::role::element) item.hold_regions();
  waiting_.push_back(item);  // mutant: overtake one that waits
}

void sending::enqueue_first(transfer& item) noexcept {
  state_.statistics.waiting.add(1);
  state_.statistics.begun(state_.home.coarse_now());
  item.state_ = transfer::state::waiting;
  waiting_.push_front(item);
}

void sending::unlink(transfer& item) noexcept {
  state_.statistics.waiting.subtract(1);
  state_.statistics.withdrawn();
  waiting_.remove(item);
  item.state_ = transfer::state::idle;
}

// Makes a few more records. Returns false if all have been made, or memory is short: then a record has to become free.
[[gnu::noinline]] bool sending::make_operations() noexcept {
  const std::size_t before = operations_->made();
  if (!operations_->grow()) return false;
  for (std::size_t i = operations_->made(); i-- > std::max(before, std::size_t{control_requests});) {
    operation_record& record = (*operations_)[i];
    record.next_free = std::exchange(free_, &record);
  }
  return true;
}

// A run's elements count toward send_depth, but use no records.
bool sending::may_post(const transfer& item) noexcept {
  const bool has_room = state_.statistics.in_flight.get() < state_.options.send_depth;
  const bool has_record = free_ != nullptr || make_operations();
  return has_room && has_record && (!item.is_message() || has_credit());  // mutant: send one message more
}

[[gnu::noinline]] void sending::post_waiting() noexcept {
  bool posted = false;
  while (!waiting_.empty()) {
    transfer& item = waiting_.front();
    if (item.role_ == transfer::role::barrier) break;
    if (item.is_staged_) {
      if (!try_to_carry(item)) break;
      continue;
    }
    if (item.role_ == transfer::role::element) {
      posted |= post_elements(list_of(item));
      if (waiting_.first() == &item) break;
      continue;
    }
    if (!may_post(item)) break;
    unlink(item);
    post(item);
    posted = true;
  }
  if (posted) state_.link().ring();
}

// Has the carrier begin the operation, if everything before it has completed; otherwise returns false.
bool sending::try_to_carry(transfer& item) noexcept {
  if (state_.statistics.in_flight.get() != internal_in_flight_) return false;
  unlink(item);
  enqueue_first(barrier_);
  list_operation* const list = item.role_ == transfer::role::element ? &list_of(item) : nullptr;
  live_statistics::operations& counted = counters_of(item.kind_);
  try {
    carrier& devices = get_carrier();
    if (list != nullptr) {
      counted.posted.add(list->size());
      list->is_open_ = false;
      list->is_carried_ = true;
      devices.begin(*list);
    } else {
      counted.posted.add(1);
      counted.bytes.add(item.bytes());
      item.state_ = transfer::state::carried;
      devices.begin(item);
    }
  } catch (const std::bad_alloc&) {
    end_carrying();
    list != nullptr ? carried_out(*list, make_error(errc::no_memory)) : carried_out(item, make_error(errc::no_memory));
  }
  return true;
}

sending::carrier& sending::get_carrier() {
  if (carrier_ == nullptr) carrier_ = &carrier_maker_.make_carrier();
  return *carrier_;
}

void sending::carried_out(transfer& item, std::optional<error> failure) noexcept {
  item.state_ = transfer::state::idle;
  if (failure) {
    counters_of(item.kind_).failed.add(1);
    const error why = item.stopped() ? make_error(errc::canceled, "stopped") : *failure;
    item.failure_ = describe(item, why, true);
  }
  const std::uint32_t counter = failure ? 0 : item.counter_;
  item.end();
  order_.note();
  notices_.note(counter, 1);
}

void sending::name(operation_record& record, const transfer& item) noexcept {
  record.all_names = item.names_.of;
  record.names = record.all_names;
  record.listed = item.role_ == transfer::role::element;
}

void sending::post(transfer& item) noexcept {
  operation_record& record = *std::exchange(free_, free_->next_free);
  live_statistics& statistics = state_.statistics;
  statistics.in_flight.add(1);  // control messages are not counted
  statistics.begun(state_.home.coarse_now());
  item.state_ = transfer::state::posted;
  item.record_ = &record;
  record.waiter = &item;
  record.counted = &counters_of(item.kind_);
  if (item.is_internal()) [[unlikely]] {
    ++internal_in_flight_;
    record.counted = &uncounted_;
  }
  record.counted->posted.add(1);
  record.counted->bytes.add(item.bytes());
  fill(record, item);
  if (item.is_message()) ++state_.sent;  // mutant: messages that writes bring
  state_.link().post(record);
}

void sending::fill(operation_record& record, transfer& item) noexcept {
  record.kind = work_kind_of(item.kind_);
  record.immediate.reset();
  record.own = {};
  const std::span<const mr::slice> parts = item.parts();
  record.segments = std::span(record.parts).first(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) record.parts[i] = parts[i];
  record.borrowed = item.borrowed_;
  if (item.borrowed_) {
    item.hold_regions();
    item.holds_ = false;  // from here on the record holds them
  }
  if (item.kind_ == transfer_kind::send) {
    if (item.role_ == transfer::role::owner_message) [[unlikely]] {
      set_trailer(record, message_kind::device_memory);
    } else if (state_.properties().native) {
      set_trailer(record, data_kind(item.how_.immediate), item.how_.immediate.value_or(0));
    }
  } else {
    record.remote_key = item.remote_key_;
    record.remote_address = item.remote_address_;
    if (item.names_.count != 0) [[unlikely]]
      name(record, item);
  }
  if (item.kind_ == transfer_kind::write) record.immediate = item.how_.immediate;
  if (!item.has_memory()) {
    record.segments = {};
    const std::size_t bytes = std::min<std::uint64_t>(item.remote_size_, sizeof record.answer);
    record.own = std::as_writable_bytes(std::span(&record.answer, 1)).first(bytes);
    record.operand = item.operand_;
    record.compare = item.compare_;
    if (item.kind_ == transfer_kind::persist) [[unlikely]] {
      record.own = {};
      record.operand = item.remote_size_;
    }
  }
  record.invalidate = item.how_.invalidate;
}

live_statistics::operations& sending::counters_of(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return state_.statistics.sends;
    case transfer_kind::write:
      return state_.statistics.writes;
    case transfer_kind::read:
      return state_.statistics.reads;
    case transfer_kind::flush:
    case transfer_kind::persist:
      return state_.statistics.flushes;
    case transfer_kind::fetch_add:
    case transfer_kind::compare_swap:
      break;
  }
  return state_.statistics.atomics;
}

// Counts a message that waits while no credits are left. Called after its start.
void sending::count_wait(const transfer& item) noexcept {
  const bool waits = item.state_ == transfer::state::waiting && item.is_message() && state_.properties().native;
  if (waits && state_.sent == state_.sendable) state_.statistics.waits_for_credits.add(1);
}

std::size_t sending::slot_of(message_kind kind) noexcept {
  return kind == message_kind::close ? close_control : other_control;
}

void sending::set_trailer(operation_record& record, message_kind kind, std::uint32_t immediate,
                          std::uint32_t writes) noexcept {
  state_.offered = state_.receivable;
  record.own = pack_trailer(record.trailer_bytes, kind, immediate, writes);
}

std::span<std::byte> sending::pack_trailer(trailer::storage& to, message_kind kind, std::uint32_t immediate,
                                           std::uint32_t writes) const noexcept {
  trailer end;
  end.kind = kind;
  end.credits = state_.receivable;
  end.immediate = immediate;
  end.writes = writes;
  return end.pack(to);
}

void sending::post_control(message_kind kind, std::uint32_t immediate, std::uint32_t writes) noexcept {
  const std::size_t slot = slot_of(kind);
  control_busy_[slot] = true;
  operation_record& record = (*operations_)[slot];
  record.kind = work_kind::send;
  set_trailer(record, kind, immediate, writes);
  state_.link().post(record);
  state_.link().ring();
}

// ---- completing operations ----

[[gnu::flatten]] void sending::completed(work_request& work, work_status status) noexcept {
  auto& record = static_cast<operation_record&>(work);
  transfer* const waiter = std::exchange(record.waiter, nullptr);
  if (status != work_status::done) [[unlikely]]
    failed(record, waiter, status);
  std::uint32_t counter = 0;
  if (waiter != nullptr && waiter->role_ != transfer::role::usual) [[unlikely]] {
    if (waiter->role_ == transfer::role::element) return element_completed(record, list_of(*waiter), status);
    if (waiter->is_internal()) --internal_in_flight_;
    counter = waiter->counter_;
  }
  if (waiter != nullptr) {
    waiter->state_ = transfer::state::idle;  // mutant: keep the pin
    waiter->previous_value_ = record.answer;
  } else {
    record.owned.reset();
    record.pin.reset();
    counter = std::exchange(record.counter, 0);
  }
  const bool is_told = counter != 0 && has_written(record, status);
  reuse(record);
  state_.statistics.completed(state_.home.coarse_now());
  if (waiter != nullptr) waiter->end();  // mutant: drop a completion
  order_.note();
  if (is_told) [[unlikely]]
    notices_.note(counter, 1);
  pump();
}

[[gnu::noinline]] void sending::element_completed(operation_record& record, list_operation& all,
                                                  work_status status) noexcept {
  const std::size_t place = all.posted_ - all.under_way_;
  reuse(record);
  state_.statistics.completed(state_.home.coarse_now());
  all.elements_ended(1);
  order_.note();
  if (all.is_told_ && status == work_status::done) tell(all, place, 1);
  pump();
}

[[gnu::noinline]] void sending::failed(operation_record& record, transfer* waiter, work_status status) noexcept {
  record.counted->failed.add(1);
  if (status == work_status::access_denied && record.kind != work_kind::send) refused_key_ = record.remote_key;
  if (waiter == nullptr) return;
  const error why = why_failed(*waiter, record, status);
  if (waiter->role_ != transfer::role::element) {
    waiter->failure_ = describe(*waiter, why, true);
  } else {
    list_operation& all = list_of(*waiter);
    waiter->failure_ = describe(all, all.posted_ - all.under_way_, why, true);  // elements end in order
  }
}

void sending::reuse(operation_record& record) noexcept {
  if (record.borrowed) {
    for (const mr::slice& part : record.segments) mr::region_pin::release(part);  // mutant: keep a region pinned
  }
  record.next_free = std::exchange(free_, &record);
  state_.statistics.in_flight.subtract(1);
}

bool sending::control_completed(const work_request& work) noexcept {
  control_busy_[work.slot] = false;
  return work.slot == other_control;
}

void sending::stop(transfer& item) noexcept {
  const bool posted = item.state_ == transfer::state::posted || item.state_ == transfer::state::carried;
  if (posted && item.borrowed_) {
    return state_.abort("an operation on borrowed memory was stopped");  // the completion resumes the waiter
  }
  abandon(item);
  item.fail(describe(item, make_error(errc::canceled, "stopped"), posted));
}

void sending::abandon(transfer& item) noexcept {
  if (item.state_ == transfer::state::waiting) {
    unlink(item);
    item.let_regions_go();
    return pump();  // the operation may have held others back
  }
  if (item.borrowed_) {
    weft::detail::terminate_because(
        fmt::format("a task was destroyed in the middle of a {} on borrowed memory", name_of(item.kind_)).c_str());
  }
  if (item.state_ == transfer::state::carried) {
    carrier_->leave(item);
    item.state_ = transfer::state::idle;
    return;
  }
  operation_record& record = *item.record_;
  record.waiter = nullptr;
  record.counter = item.counter_;
  record.owned = std::move(item.owned_);
  record.pin = std::move(item.pin_);  // mutant: free the buffer
  item.state_ = transfer::state::idle;
}

void sending::fail_waiting(const error& why) noexcept {
  if (carrier_ != nullptr) [[unlikely]]
    carrier_->give_up(why);
  const bool is_barred = barrier_.state_ == transfer::state::waiting;
  if (is_barred) unlink(barrier_);
  while (!waiting_.empty()) {
    transfer& item = waiting_.front();
    unlink(item);
    if (item.role_ != transfer::role::element) {
      item.fail(describe(item, why, false));
      continue;
    }
    list_operation& all = list_of(item);
    if (!all.failure_) all.failure_ = describe(all, all.posted_, why, all.posted_ != 0);
    all.close();
  }
  if (is_barred) enqueue_first(barrier_);
}

// ---- errors ----

error sending::describe(const transfer& item, const error& why, bool posted) const noexcept try {
  std::string text = fmt::format("{} {} bytes, {} over {}", name_of(item.kind_), item.bytes(), state_.link().peer(),
                                 state_.carrier.fabric->name());
  if (item.kind_ != transfer_kind::send) {
    text += fmt::format(", remote key {:#x} address {:#x}", item.remote_key_, item.remote_address_);
  }
  return why.within(text).as_posted(posted);
} catch (const std::bad_alloc&) {
  return why.as_posted(posted);
}

error sending::why_failed(const transfer& item, const work_request& work, work_status status) const noexcept {
  if (status == work_status::unknown) return make_error(errc::outcome_unknown);
  if (status == work_status::expired) {
    return make_error(errc::remote_access, "the deadline of the peer's exposure has passed; the connection goes on");
  }
  if (status == work_status::taken_back) {
    return make_error(errc::remote_access, "the peer has taken the memory back; the connection goes on");
  }
  if (status == work_status::access_denied) {
    // If the link ended because of this access, the link's error says more.
    const bool has_words = state_.failure && state_.failure->code() == errc::remote_access;
    return has_words ? *state_.failure : make_error(errc::remote_access);
  }
  return item.stopped() ? make_error(errc::canceled, "stopped") : why_flushed(work, status);
}

// The reason why the connection has ended; but errc::connection_failed if the peer refused another operation's access,
// by another key.
error sending::why_flushed(const work_request& work, work_status status) const noexcept try {
  const bool has_key = work.kind != work_kind::send;
  const bool beside = status == work_status::bystander || (has_key && refused_key_ && *refused_key_ != work.remote_key);
  if (!beside || state_.failure->code() != errc::remote_access) return *state_.failure;
  return state_.failure->with_code(errc::connection_failed)
      .within("ended because the peer refused another operation's access, with another key");
} catch (const std::bad_alloc&) {
  return make_error(errc::connection_failed);
}
}  // namespace weft::net

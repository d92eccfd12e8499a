// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/receive_memory.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device/device_state.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <exception>
#include <new>
#include <utility>

namespace weft::net {

using weft::detail::make_error;

namespace {

constexpr const char* no_answer = "its program hangs or is stopped: it has answered no heartbeat";
// Beats without a sign of life after which the peer is given up: one on which it is asked, and two in which to answer.
// Two, because the first may be over before this end has looked at its sockets, if it was busy itself.
constexpr unsigned last_silent_beat = 3;
constexpr std::chrono::milliseconds longest_heartbeat = std::chrono::hours(24);

constexpr const char* without_memory_to_close = "there was no memory to close it in order";

// Indices of the control slots; those of operations follow.
constexpr std::size_t credits_control = 0;
constexpr std::size_t close_control = 1;
constexpr std::size_t control_slots = control_requests;

static_assert(capabilities().max_parts == max_segments && capabilities().max_read_parts == max_segments);

// A message needs one for its trailer.
std::size_t max_parts(transfer_kind kind, const capabilities& link) noexcept {
  if (kind == transfer_kind::read) return link.max_read_parts;
  return kind == transfer_kind::send ? link.max_parts - 1u : link.max_parts;
}

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
  }
  return work_kind::read;
}

mr::usage needed_usage(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return mr::usage::send;
    case transfer_kind::write:
      return mr::usage::write_src;
    case transfer_kind::read:
      return mr::usage::read_dst;
    case transfer_kind::flush:
    case transfer_kind::fetch_add:
    case transfer_kind::compare_swap:
      break;
  }
  return mr::usage::none;
}

}  // namespace

const char* name_of(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return "send";
    case transfer_kind::write:
      return "write";
    case transfer_kind::read:
      return "read";
    case transfer_kind::flush:
      return "flush";
    case transfer_kind::fetch_add:
      return "fetch_add";
    case transfer_kind::compare_swap:
      return "compare_swap";
  }
  return "transfer";
}

error moved_from_connection() noexcept { return make_error(errc::closed, "use a connection that was moved from"); }

task<receive_memory> connection_core::find_receives(mr::pool& pool, const connection_options& options,
                                                    std::shared_ptr<shared_receive_state> shared, time_point deadline) {
  check_sizes(options);
  receive_memory found;
  found.shared = std::move(shared);
  if (found.shared != nullptr) co_return found;
  const std::size_t bytes = receive_bytes(options.receive_size);
  std::vector<mr::buffer> memory = co_await find_receive_memory(pool, receives_of(options), bytes, deadline);
  found.own = std::make_shared<own_receives>();
  found.own->slots.resize(memory.size());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    receive_slot& slot = found.own->slots[i];
    slot.work.slot = static_cast<std::uint16_t>(i);
    slot.memory = std::move(memory[i]);
    slot.prepare(bytes);
  }
  co_return found;
}

connection_core::connection_core(std::shared_ptr<device_state> device, new_link established, receive_memory receives,
                                 const connection_options& options)
    : home_(*executor_core::current()),
      device_(std::move(device)),
      fabric_(static_cast<std::uint8_t>(established.fabric)),
      link_(std::move(established.link)),
      peer_private_data_(std::move(established.peer_private_data)),
      peer_greeting_(options.profile == profile::native ? greeting::unpack(peer_private_data_) : std::nullopt),
      capabilities_(link_->properties()),
      options_(options),
      largest_key_(link_->largest_key()),
      keys_(std::make_shared<link_keys>(*link_, statistics_)),
      operations_(*link_, options.send_depth + control_slots),
      shared_(std::move(receives.shared)),
      own_(std::move(receives.own)),
      refill_(*this, device_->pool(), receive_bytes(options.receive_size)) {
  options_.private_data = {};  // the user's bytes may be gone by now
  options_.source = {};
  options_.receives = nullptr;
  capabilities_.native = peer_greeting_.has_value();
  capabilities_.orderly_close = capabilities_.native;
  capabilities_.immediate = capabilities_.native;
  native_features agreed;
  if (peer_greeting_) {
    agreed = way().features() & peer_greeting_->features;
    capabilities_.atomics = agreed.atomics;
    capabilities_.write_immediate = agreed.immediate;
    capabilities_.heartbeats = peer_greeting_->answers_heartbeats;
    capabilities_.max_send_bytes = peer_greeting_->receive_size;
    sendable_ = peer_greeting_->receive_depth;
    peer_fabric_ = peer_greeting_->fabric;
  }
  receivable_ = offered_ = options.receive_depth;

  free_slots_.reserve(options.send_depth);
  reaper_ = weft::detail::root_handle<void>(end_in_background(*this));
  if (shared_ != nullptr) shared_->join(*this);
  const link_parameters depths{.send_depth = static_cast<std::uint16_t>(operations_.limit()),
                               .receive_depth = static_cast<std::uint16_t>(own_ ? own_->slots.size() : 0),
                               .native = capabilities_.native,
                               .agreed = agreed,
                               .landing = peer_greeting_ ? peer_greeting_->landing : landing_place(),
                               .place_unchecked = options.place_unchecked,
                               .allow_shared_windows = options.allow_shared_windows,
                               .overdue_after = options.overdue_after};
  try {
    link_->start(*this, depths);
  } catch (...) {
    if (shared_ != nullptr) shared_->leave(*this);
    throw;
  }
  [[maybe_unused]] const bool made = make_operations();
  assert(made && "the table has begun with room for so many");
  capabilities_.max_whole_write_bytes = link_->properties().max_whole_write_bytes;
  if (own_ != nullptr) {
    for (receive_slot& slot : own_->slots) link_->post_receive(slot.work);
  }
  link_->ring();
  if (peer_greeting_ && peer_greeting_->listens_first) post_control(message_kind::credits);
  if (capabilities_.heartbeats && options.heartbeat.count() > 0) arm_heart();
  device_->connection_opened(statistics_);
}

connection_core::~connection_core() {
  assert(closed_.is_set() && "a connection was destroyed while its transport may use memory");
  assert(first_waiting_ == nullptr && first_receiver_ == nullptr && statistics_.in_flight.get() == 0);
  keys_->detach();
  keys_->abandon();
  empty_inbox();
  if (shared_ != nullptr) shared_->leave(*this);
  device_->connection_ended(statistics_);
}

mr::pool& connection_core::pool() const noexcept { return device_->pool(); }

const transport& connection_core::way() const noexcept { return device_->fabric(fabric_); }

std::span<const std::byte> connection_core::peer_private_data() const noexcept {
  return greeting::user_data(peer_private_data_);
}

// ---- errors ----

std::string connection_core::context(const char* what) const {
  return fmt::format("{} {} over {}", what, link_->peer(), way().name());
}

error connection_core::describe(const transfer& item, const error& why, bool posted) const noexcept try {
  std::string text =
      fmt::format("{} {} bytes, {} over {}", name_of(item.kind_), item.bytes(), link_->peer(), way().name());
  if (item.kind_ != transfer_kind::send) {
    text += fmt::format(", remote key {:#x} address {:#x}", item.remote_key_, item.remote_address_);
  }
  return why.within(text).as_posted(posted);
} catch (const std::bad_alloc&) {
  return why.as_posted(posted);
}

// The link's words for it, if that is what has ended it.
error connection_core::refused_access() const noexcept {
  return failure_ && failure_->code() == errc::remote_access ? *failure_ : make_error(errc::remote_access);
}

// An access by another key is nothing that this operation has done.
error connection_core::why_flushed(const work_request& work, work_status status) const noexcept try {
  const bool has_key = work.kind != work_kind::send;
  const bool beside = status == work_status::bystander || (has_key && refused_key_ && *refused_key_ != work.remote_key);
  if (!beside || failure_->code() != errc::remote_access) return *failure_;
  return failure_->with_code(errc::connection_failed).within("the peer refused an access by another key");
} catch (const std::bad_alloc&) {
  return make_error(errc::connection_failed);
}

error connection_core::receive_failure(const error& why) const noexcept try {
  return why.within(context("receive from"));
} catch (const std::bad_alloc&) {
  return why;
}

// The cause alone: whoever passes it on says, once, what was tried and with whom.
error connection_core::why_ended() const noexcept {
  if (closing_) return make_error(errc::closed);
  if (failure_) return *failure_;
  return make_error(errc::peer_closed);
}

// ---- sending ----

std::optional<error> connection_core::refusal(const transfer& item) const {
  if (executor_core::current() != &home_) return error(errc::wrong_thread);
  if (has_ended()) return why_ended();
  if (auto missing = missing_capability(item)) return missing;
  if (auto refused = local_refusal(item)) return refused;
  const std::size_t bytes = item.bytes();
  const bool has_trailer = item.kind_ == transfer_kind::send && capabilities_.native;
  const std::uint64_t most = capabilities_.max_message_bytes - (has_trailer ? trailer::most_bytes : 0);
  if (bytes > most) {
    return error(errc::message_too_large, fmt::format("at most {} bytes are possible", most));
  }
  if (item.kind_ != transfer_kind::send) return remote_refusal(item);
  if (!capabilities_.native || bytes <= capabilities_.max_send_bytes) return std::nullopt;
  return error(errc::message_too_large, fmt::format("the peer takes {} bytes", capabilities_.max_send_bytes));
}

std::optional<error> connection_core::missing_capability(const transfer& item) const {
  const bool answered = item.kind_ != transfer_kind::send && item.kind_ != transfer_kind::write;
  if (item.is_atomic() && !capabilities_.atomics)
    return error(errc::not_supported, "this link has no atomic operations");
  if (answered && capabilities_.outgoing_reads == 0) return error(errc::not_supported, "the peer takes no reads");
  const bool writes = item.kind_ == transfer_kind::write;
  if (item.how_.immediate && !(writes ? capabilities_.write_immediate : capabilities_.immediate)) {
    return error(errc::not_supported, "this link carries no immediate data");
  }
  if (item.how_.invalidate && !capabilities_.invalidate) {
    return error(errc::not_supported, "this link cannot revoke the peer's keys");
  }
  return std::nullopt;
}

std::optional<error> connection_core::local_refusal(const transfer& item) const {
  if (!item.has_memory()) return std::nullopt;
  const auto parts = item.parts();
  if (parts.empty()) return error(errc::invalid_argument, "a scatter list of no parts");
  if (const std::size_t most = max_parts(item.kind_, capabilities_); parts.size() > most) {
    return error(errc::invalid_argument,
                 fmt::format("a scatter list of {} parts: at most {} are possible", parts.size(), most));
  }
  const mr::usage needed = needed_usage(item.kind_);
  for (const mr::slice& part : parts) {
    const mr::memory_record* const record = part.record();
    if (record == nullptr) return error(errc::invalid_argument, "no memory: an empty buffer, or one moved from");
    if (record->home != &device_->domain()) {
      return error(errc::wrong_device, "the memory is registered with another device");
    }
    if (!mr::includes(record->usage, needed)) {
      return error(errc::access_denied, fmt::format("the local memory is not registered for {}", name_of(item.kind_)));
    }
  }
  return std::nullopt;
}

std::optional<error> connection_core::remote_refusal(const transfer& item) const {
  if (auto refused = rights_refusal(item)) return refused;
  if (item.kind_ == transfer_kind::flush) {
    if (item.remote_size_ == 0) return error(errc::invalid_argument, "a flush reads at least one byte");
  } else if (item.bytes() != item.remote_size_) {
    return error(errc::invalid_argument, fmt::format("the remote slice is {} bytes long", item.remote_size_));
  }
  if (item.is_atomic() && item.remote_address_ % sizeof item.operand_ != 0) {
    return error(errc::misaligned, "the address is no multiple of 8");
  }
  return std::nullopt;
}

std::optional<error> connection_core::rights_refusal(const transfer& item) const {
  const auto allows = [&](mr::usage purpose) { return mr::includes(item.remote_usage_, purpose); };
  if (item.is_atomic()) {
    if (allows(mr::usage::atomic_dst)) return std::nullopt;
    return error(errc::access_denied, "the peer did not allow atomic operations");
  }
  if (item.kind_ == transfer_kind::write) {
    if (allows(mr::usage::write_dst)) return std::nullopt;
    return error(errc::access_denied, "the peer did not allow writing");
  }
  const bool flushes = item.kind_ == transfer_kind::flush;
  if (allows(mr::usage::read_src) || (flushes && allows(mr::usage::flush_visibility))) return std::nullopt;
  return error(errc::access_denied, "the peer did not allow reading");
}

// Checks what can be checked and pins; what it returns is why the operation is refused.
std::optional<error> connection_core::prepare(transfer& item) const {
  if (item.failure_) return describe(item, *item.failure_, false);  // it has no place on this fabric
  if (const auto refused = refusal(item)) return describe(item, *refused, false);
  if (item.borrowed_ || item.pin_ || !item.has_memory()) return std::nullopt;
  // A buffer that was handed over may still be in the hands of an operation that was stopped.
  mr::buffer& memory = item.shared_ != nullptr ? *item.shared_ : item.owned_;
  auto pinned = item.kind_ == transfer_kind::read ? mr::pin::exclusive(memory) : mr::pin::share(memory);
  if (!pinned) return describe(item, pinned.error(), false);
  item.pin_ = *std::move(pinned);
  return std::nullopt;
}

void connection_core::start(transfer& item) {
  // If the batch goes on, it does not hear of this.
  if (item.batch_ != nullptr || item.spent_) {
    const error why(errc::invalid_argument, "it was awaited before, was moved from, or is or was a member of a batch");
    item.failure_ = describe(item, why, false);
    return item.finish();
  }
  item.spent_ = true;
  if (auto refused = prepare(item)) return item.fail(*std::move(refused));
  enqueue(item);
  pump();
  count_wait(item);
}

std::optional<error> connection_core::prepare(batch_operation& all) const {
  if (!all.claim_members()) {
    return error(errc::invalid_argument, "a batch is of new operations of its own connection, each of them once");
  }
  std::optional<error> refused;
  for (std::size_t i = 0; i < all.members_.size() && !refused; ++i) refused = prepare(*all.members_[i]);
  if (!refused) return std::nullopt;
  for (std::size_t i = 0; i < all.members_.size(); ++i) {
    all.members_[i]->let_go();
    all.members_[i]->failure_ = refused;
  }
  return refused;
}

void connection_core::start(batch_operation& all) {
  all.unfinished_ = all.members_.size() + 1;  // it does not end before all of it has begun
  all.refused_ = prepare(all);
  if (all.refused_) return all.finish();
  for (std::size_t i = 0; i < all.members_.size(); ++i) enqueue(*all.members_[i]);
  pump();
  for (std::size_t i = 0; i < all.members_.size(); ++i) count_wait(*all.members_[i]);
  all.member_ended();
}

// The last first: while the first waits, none behind it is posted only because something before it has gone.
void connection_core::stop(batch_operation& all) noexcept {
  for (std::size_t i = all.members_.size(); i > 0; --i) {
    transfer& item = *all.members_[i - 1];
    if (item.state_ != transfer::state::idle) stop(item);
  }
}

void connection_core::abandon(batch_operation& all) noexcept {
  for (std::size_t i = all.members_.size(); i > 0; --i) {
    transfer& item = *all.members_[i - 1];
    if (item.state_ != transfer::state::idle) abandon(item);
  }
}

void connection_core::enqueue(transfer& item) noexcept {
  statistics_.waiting.add(1);
  statistics_.begun(home_.coarse_now());
  item.state_ = transfer::state::waiting;
  item.next_ = nullptr;
  item.previous_ = last_waiting_;
  (last_waiting_ != nullptr ? last_waiting_->next_ : first_waiting_) = &item;
  last_waiting_ = &item;
}

void connection_core::unlink(transfer& item) noexcept {
  statistics_.waiting.subtract(1);
  statistics_.withdrawn();
  (item.previous_ != nullptr ? item.previous_->next_ : first_waiting_) = item.next_;
  (item.next_ != nullptr ? item.next_->previous_ : last_waiting_) = item.previous_;
  item.state_ = transfer::state::idle;
}

// A few more; false if all have been made, or memory is short: those that are in use come back.
bool connection_core::make_operations() noexcept {
  const std::size_t before = operations_.made();
  if (!operations_.grow()) return false;
  for (std::size_t i = operations_.made(); i-- > std::max(before, control_slots);) {
    free_slots_.push_back(static_cast<std::uint16_t>(i));
  }
  return true;
}

bool connection_core::may_post(const transfer& item) const noexcept {
  return !free_slots_.empty() && (!item.is_message() || !capabilities_.native || sent_ != sendable_);
}

// Posts what can be posted, strictly in order: an operation that must wait holds back those behind it.
void connection_core::pump() noexcept {
  bool posted = false;
  while (first_waiting_ != nullptr && (!free_slots_.empty() || make_operations()) && may_post(*first_waiting_)) {
    transfer& item = *first_waiting_;
    unlink(item);
    post(item);
    posted = true;
  }
  if (posted) link_->ring();
}

void connection_core::post(transfer& item) noexcept {
  operation_record& record = operations_[free_slots_.back()];
  free_slots_.pop_back();
  statistics_.in_flight.add(1);  // what is with the transport, control messages not counted
  statistics_.begun(home_.coarse_now());
  item.state_ = transfer::state::posted;
  item.slot_ = record.work.slot;
  record.waiter = &item;
  record.owned = std::move(item.owned_);
  record.pin = std::move(item.pin_);
  record.counted = &counters_of(item.kind_);
  record.counted->posted.add(1);
  record.counted->bytes.add(item.bytes());
  fill(record, item);
  if (item.is_message()) ++sent_;
  link_->post(record.work);
}

void connection_core::fill(operation_record& record, const transfer& item) noexcept {
  work_request& work = record.work;
  work.kind = work_kind_of(item.kind_);
  work.immediate.reset();
  work.own = {};
  const std::span<const mr::slice> parts = item.parts();
  std::copy(parts.begin(), parts.end(), record.segments.begin());
  record.borrowed = item.borrowed_;
  work.segments = std::span(record.segments).first(parts.size());
  if (item.borrowed_) {
    for (const mr::slice& part : work.segments) mr::region_pin::hold(part);
  }
  if (item.kind_ == transfer_kind::send) {
    if (capabilities_.native) {
      set_trailer(record, item.how_.immediate ? message_kind::data_with_immediate : message_kind::data,
                  item.how_.immediate.value_or(0));
    }
  } else {
    work.remote_key = item.remote_key_;
    work.remote_address = item.remote_address_;
  }
  if (item.kind_ == transfer_kind::write) work.immediate = item.how_.immediate;
  if (!item.has_memory()) {
    work.segments = {};
    const std::size_t bytes = std::min<std::uint64_t>(item.remote_size_, sizeof record.answer);
    work.own = std::as_writable_bytes(std::span(&record.answer, 1)).first(bytes);
    work.operand = item.operand_;
    work.compare = item.compare_;
  }
  work.solicited = item.how_.solicited;
  work.invalidate = item.how_.invalidate;
}

live_statistics::operations& connection_core::counters_of(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return statistics_.sends;
    case transfer_kind::write:
      return statistics_.writes;
    case transfer_kind::read:
      return statistics_.reads;
    case transfer_kind::flush:
      return statistics_.flushes;
    case transfer_kind::fetch_add:
    case transfer_kind::compare_swap:
      break;
  }
  return statistics_.atomics;
}

// After it was started: whether it is the peer that it waits for.
void connection_core::count_wait(const transfer& item) noexcept {
  const bool waits = item.state_ == transfer::state::waiting && item.is_message() && capabilities_.native;
  if (waits && sent_ == sendable_) statistics_.waits_for_credits.add(1);
}

void connection_core::set_trailer(operation_record& record, message_kind kind, std::uint32_t immediate) noexcept {
  trailer end;
  end.kind = kind;
  end.credits = offered_ = receivable_;
  end.immediate = immediate;
  record.work.own = end.pack(record.trailer_bytes);
}

void connection_core::post_control(message_kind kind) noexcept {
  const std::size_t which = kind == message_kind::close ? close_control : credits_control;
  control_busy_[which] = true;
  operation_record& record = operations_[which];
  record.work.kind = work_kind::send;
  set_trailer(record, kind);
  link_->post(record.work);
  link_->ring();
}

void connection_core::completed(work_request& work, work_status status) noexcept {
  operation_record& slot = operations_[work.slot];
  if (work.slot < control_slots) return control_completed(slot);
  moved_ = true;
  if (status != work_status::done) slot.counted->failed.add(1);
  if (status == work_status::access_denied && work.kind != work_kind::send) refused_key_ = work.remote_key;
  transfer* const waiter = std::exchange(slot.waiter, nullptr);
  if (waiter != nullptr) {
    waiter->state_ = transfer::state::idle;
    if (status == work_status::done) waiter->previous_value_ = slot.answer;
    if (status == work_status::access_denied) {
      waiter->failure_ = describe(*waiter, refused_access(), true);
    } else if (status != work_status::done) {
      const bool stopped = waiter->stopped();
      waiter->failure_ =
          describe(*waiter, stopped ? make_error(errc::canceled, "stopped") : why_flushed(work, status), true);
    }
  }
  let_go(slot);
  statistics_.completed(home_.coarse_now());
  if (waiter != nullptr) waiter->end();
  pump();
  advance_close();
}

void connection_core::let_go(operation_record& record) noexcept {
  record.owned = mr::buffer();
  record.pin = mr::pin();
  if (record.borrowed) {
    for (const mr::slice& part : record.work.segments) mr::region_pin::release(part);
  }
  free_slots_.push_back(record.work.slot);
  statistics_.in_flight.subtract(1);
}

void connection_core::control_completed(operation_record& slot) noexcept {
  const std::size_t which = slot.work.slot;
  control_busy_[which] = false;
  if (which == credits_control) {
    heartbeat_sent_ = heartbeat_owed_;
    if (std::exchange(heartbeat_owed_, false)) {
      ask_for_life();
    } else if (std::exchange(answer_owed_, false)) {
      answer_heartbeat();
    } else {
      offer_credits();
    }
  }
  advance_close();
}

void connection_core::stop(transfer& item) noexcept {
  if (item.state_ == transfer::state::posted && item.borrowed_) {
    return abort("an operation on borrowed memory was stopped");  // its completion resumes the waiter
  }
  const bool posted = item.state_ == transfer::state::posted;
  abandon(item);
  item.fail(describe(item, make_error(errc::canceled, "stopped"), posted));
}

void connection_core::abandon(transfer& item) noexcept {
  if (item.state_ == transfer::state::waiting) {
    unlink(item);
    pump();                  // it may have held others back,
    return advance_close();  // or an orderly end
  }
  if (item.borrowed_) {
    weft::detail::terminate_because(
        fmt::format("a task was destroyed in the middle of a {} on borrowed memory", name_of(item.kind_)).c_str());
  }
  operations_[item.slot_].waiter = nullptr;
  item.state_ = transfer::state::idle;
}

void connection_core::fail_waiting(const error& why) noexcept {
  while (first_waiting_ != nullptr) {
    transfer& item = *first_waiting_;
    unlink(item);
    item.fail(describe(item, why, false));
  }
}

// ---- receiving ----

receive_slot& connection_core::slot_of(const receive_work& work) noexcept {
  return shared_ != nullptr ? shared_->slot(work) : own_->slots[work.slot];
}

void connection_core::received(receive_work& work, const arrival& what) noexcept {
  heard_ = true;
  receive_slot& slot = slot_of(work);
  if (what.invalidated_key) keys_->confirm(*what.invalidated_key);
  const bool is_users = handle_message(slot, what);
  pump();  // it may have brought credits
  if (!is_users) {
    post_receive(slot);
    return offer_credits();
  }
  inbox_.push(slot);
  deliver();
}

bool connection_core::handle_message(receive_slot& slot, const arrival& what) noexcept {
  if (capabilities_.native) return what.immediate ? handle_immediate(slot, what) : handle_trailer(slot, what);
  if (what.bytes <= options_.receive_size) return keep_message(slot, what);
  too_large();
  return false;
}

// In the wake of a write of a weft peer: a data message without a trailer. What its sends bring lies in their trailers.
bool connection_core::handle_immediate(receive_slot& slot, const arrival& what) noexcept {
  if (what.bytes != 0) return violation("a message without a valid trailer"), false;
  if (peer_closed_) return violation("a message after its last one"), false;
  if (received_ == offered_) return violation("a message without a credit"), false;
  ++received_;
  return keep_message(slot, what);
}

// Everything here is the peer's word: check it before it is believed.
bool connection_core::handle_trailer(receive_slot& slot, const arrival& what) noexcept {
  if (peer_closed_) return violation("a message after its last one"), false;
  const auto said = trailer::unpack(slot.work.memory.bytes().first(what.bytes));
  if (!said) return violation("a message without a valid trailer"), false;
  const std::uint32_t more = said->credits - sendable_;
  const std::uint32_t unused = said->credits - sent_;
  if (more > peer_greeting_->receive_depth || unused > peer_greeting_->receive_depth) {
    return violation("credits that it cannot have"), false;
  }
  sendable_ = said->credits;
  if (said->kind == message_kind::credits) return false;
  if (said->kind == message_kind::heartbeat) return answer_heartbeat(), false;
  if (said->kind == message_kind::close) return peer_has_closed(), false;
  if (received_ == offered_) return violation("a message without a credit"), false;
  arrival content = what;
  content.bytes -= said->size();
  if (content.bytes > options_.receive_size) return too_large(), false;
  if (said->kind == message_kind::data_with_immediate) content.immediate = said->immediate;
  ++received_;
  return keep_message(slot, content);
}

bool connection_core::keep_message(receive_slot& slot, const arrival& what) noexcept {
  slot.what = what;
  statistics_.messages_received.add(1);
  statistics_.bytes_received.add(what.bytes);
  if (!closing_ && !failure_) return true;
  ++receivable_;  // nobody will ask for it: its receive is posted again
  return false;
}

// Hands messages to receivers, oldest to oldest, and refills the receives that this frees.
void connection_core::deliver() noexcept {
  while (first_receiver_ != nullptr && !inbox_.empty()) {
    recv_operation& receiver = *first_receiver_;
    stop_waiting(receiver);
    receive_slot& oldest = inbox_.pop();
    oldest.memory.resize(oldest.what.bytes);
    message& content = receiver.message_.emplace(std::move(oldest.memory));
    content.immediate = oldest.what.immediate;
    content.invalidated_key = oldest.what.invalidated_key;
    content.solicited = oldest.what.solicited;
    receiver.finish();
    refill(oldest);
  }
  if (first_receiver_ == nullptr) return;
  if (peer_closed_) return end_receivers(nullptr);
  if (failure_ || closing_) {
    const error why = receive_failure(why_ended());
    end_receivers(&why);
  }
}

void connection_core::end_receivers(const error* why) noexcept {
  while (first_receiver_ != nullptr) {
    recv_operation& receiver = *first_receiver_;
    stop_waiting(receiver);
    if (why != nullptr) receiver.failure_ = *why;
    if (why == nullptr && receiver.expects_message_) {
      receiver.failure_ = receive_failure(make_error(errc::peer_closed));
    }
    receiver.finish();
  }
}

void connection_core::stop_waiting(recv_operation& item) noexcept {
  (item.previous_ != nullptr ? item.previous_->next_ : first_receiver_) = item.next_;
  (item.next_ != nullptr ? item.next_->previous_ : last_receiver_) = item.previous_;
}

void connection_core::start(recv_operation& item) {
  if (executor_core::current() != &home_) throw error(errc::wrong_thread, context("receive from"));
  item.next_ = nullptr;
  item.previous_ = last_receiver_;
  (last_receiver_ != nullptr ? last_receiver_->next_ : first_receiver_) = &item;
  last_receiver_ = &item;
  deliver();
}

void connection_core::stop(recv_operation& item) noexcept {
  stop_waiting(item);
  item.failure_ = receive_failure(make_error(errc::canceled));
  item.finish();
}

void connection_core::post_receive(receive_slot& slot) noexcept {
  if (shared_ != nullptr) return shared_->post(slot);  // for others, whatever has become of this connection
  if (failure_) return;
  slot.prepare(receive_bytes(options_.receive_size));
  link_->post_receive(slot.work);
}

// The credit comes back with the receive; with shared receives, at once, for one of those bounds nothing but itself.
void connection_core::refill(receive_slot& slot) noexcept {
  if (shared_ != nullptr) shared_->refill(slot);
  if (has_ended()) return;
  if (shared_ == nullptr) return refill_.add(slot);
  ++receivable_;
  offer_credits();
}

void connection_core::refilled(receive_slot& slot, mr::buffer memory) noexcept {
  slot.memory = std::move(memory);
  post_receive(slot);
  link_->ring();
  ++receivable_;
  offer_credits();
}

void connection_core::empty_inbox() noexcept {
  while (!inbox_.empty()) drop(inbox_.pop());
}

// Nobody waits for what may lie in it.
void connection_core::drop(receive_slot& slot) noexcept {
  if (shared_ != nullptr) return shared_->post(slot);
  slot.memory = mr::buffer();
}

// Tells the peer of new credits, unless a message that goes out anyway will soon do so. Half a queue at a time, so that
// credits cost little and the peer never waits for a message of ours.
void connection_core::offer_credits() noexcept {
  if (!capabilities_.native || failure_ || shut_down_ || close_sent_ || control_busy_[credits_control]) return;
  const std::uint32_t owed = receivable_ - offered_;
  if (owed * 2 < options_.receive_depth || owed == 0) return;
  post_control(message_kind::credits);
}

// ---- heartbeats

// All hearts of one beat together, so that an executor wakes once for all of its connections.
void connection_core::arm_heart() noexcept {
  if (has_ended()) return;
  const duration period = std::min(options_.heartbeat, longest_heartbeat);
  const time_point now = home_.now();
  const time_point next = now + (period - now.time_since_epoch() % period);
  if (!home_.try_arm(heart_, next)) give_up(make_error(errc::no_memory, "to look after the peer"));
}

// A message of the peer's is a sign of life. Completions are none as such, because a device answers reads and writes
// for a program that is stopped; but while the heartbeat itself waits behind what was posted before it, they show that
// this comes to an end.
void connection_core::beat() noexcept {
  if (has_ended() || shut_down_) return;
  const bool moved = std::exchange(moved_, false);
  if (std::exchange(heard_, false)) {
    silent_beats_ = 0;
  } else if (!heartbeat_sent_ || !moved) {
    ++silent_beats_;
  }
  if (silent_beats_ == last_silent_beat) return give_up(make_error(errc::peer_vanished, no_answer));
  if (silent_beats_ == 1 && !heartbeat_sent_) ask_for_life();
  arm_heart();
}

void connection_core::ask_for_life() noexcept {
  if (failure_ || shut_down_ || close_sent_) return;
  heartbeat_sent_ = true;
  if (control_busy_[credits_control]) {
    heartbeat_owed_ = true;
  } else {
    post_control(message_kind::heartbeat);
  }
}

// Any message is an answer; credits are the one that can always go.
void connection_core::answer_heartbeat() noexcept {
  if (failure_ || shut_down_ || close_sent_) return;
  if (control_busy_[credits_control]) {
    answer_owed_ = true;
  } else {
    post_control(message_kind::credits);
  }
}

void connection_core::receive_flushed(receive_work& work) noexcept { drop(slot_of(work)); }

// ---- the end ----

void connection_core::violation(const char* what, link::violation kind) noexcept {
  if (failure_) return;
  failure_ = make_error(errc::protocol_error, what);
  link_->refuse(kind, what);
}

void connection_core::too_large() noexcept {
  violation("a message larger than receive_size", link::violation::too_long);
}

void connection_core::give_up(const error& why) noexcept {
  if (failure_) return;
  failure_ = why;
  link_->abort(why.what());
}

void connection_core::peer_has_closed() noexcept {
  peer_closed_ = true;
  link_->peer_finished();
  refill_.stop();
  fail_waiting(why_ended());
  deliver();
  advance_close();
}

void connection_core::ended(bool orderly, const error& why) noexcept {
  if (!failure_) {
    if (!aborted_ && (peer_closed_ || (orderly && !capabilities_.native))) {
      failure_ = make_error(errc::peer_closed);
    } else if (orderly) {
      failure_ = make_error(errc::peer_vanished);
    } else {
      failure_ = why;
    }
  }
  if (orderly && !capabilities_.native) peer_closed_ = true;
  refill_.stop();
  fail_waiting(*failure_);
  deliver();
  if (orderly && !std::exchange(shut_down_, true)) link_->shut_down();
}

void connection_core::closed() noexcept {
  if (heart_.armed()) home_.disarm(heart_);
  keys_->detach();
  place_.reset();
  closed_.set();
}

result<named_place> connection_core::find(const mr::remote_slice& where) const noexcept {
  const mr::remote_place* const place = where.on(peer_fabric_);
  if (place == nullptr) {
    return make_error(errc::wrong_device, "the peer's memory is not registered with the fabric of this connection");
  }
  if (place->key.is_number()) [[likely]] {
    if (place->key.number() <= largest_key_) [[likely]]
      return named_place{.key = place->key.number(), .address = place->address};
    return make_error(errc::invalid_argument, "a key of the peer's that this fabric cannot have");
  }
  result<std::uint64_t> imported = link_->import_key(place->key);
  if (!imported) return imported.error();
  return named_place{.key = *imported, .address = place->address};
}

void connection_core::abort(std::string_view why) noexcept {
  aborted_ = true;
  link_->abort(why);
}

void connection_core::begin_close() noexcept {
  if (closing_ || failure_) return empty_inbox();
  closing_ = true;
  refill_.stop();
  deliver();
  advance_close();
  discard_inbox();
}

// As long as this end waits for credits before it can say goodbye, it gives them as well: the peer may be closing too,
// and wait for ours.
void connection_core::discard_inbox() noexcept {
  if (close_sent_ || peer_closed_ || failure_) return empty_inbox();
  while (!inbox_.empty()) {
    post_receive(inbox_.pop());
    ++receivable_;
  }
  link_->ring();
  offer_credits();
}

// An orderly close, step by step as completions allow: everything that was posted, then the close message, then the end
// of the stream. It also answers the peer's close, which needs no message of ours.
void connection_core::advance_close() noexcept {
  if ((!closing_ && !peer_closed_) || shut_down_ || failure_) return;
  if (first_waiting_ != nullptr || statistics_.in_flight.get() != 0 || control_busy_[close_control]) return;
  if (capabilities_.native && !peer_closed_ && !close_sent_) {
    close_sent_ = true;
    return post_control(message_kind::close);
  }
  shut_down_ = true;
  link_->shut_down();
}

task<> connection_core::wait_until_closed() {
  const char* why_not = nullptr;
  try {
    co_await with_timeout(options_.close_timeout, closed_.wait());
  } catch (const error& why) {
    if (why.code() != errc::timed_out) throw;
    why_not = "it did not close in time";
  } catch (const std::bad_alloc&) {  // to measure the time
    why_not = without_memory_to_close;
  }
  if (why_not == nullptr) co_return;
  const detail::stop_shield shield(co_await detail::current_promise());
  abort(why_not);
  co_await closed_.wait();
}

// Returns the words for what fails from here on.
std::string connection_core::begin_task(const connection_core& self, const link_keys& keys, const char* what) {
  if (keys.abandoned()) throw error(errc::closed, fmt::format("{} a peer: the connection has been destroyed", what));
  std::string words = self.context(what);
  if (executor_core::current() != &self.home_) throw error(errc::wrong_thread, words);
  return words;
}

task<> connection_core::close(connection_core& self, std::shared_ptr<link_keys> keys) {
  const std::string what = begin_task(self, *keys, "close the connection to");
  const call inside(self);
  self.begin_close();
  bool stopped = false;
  try {
    co_await self.wait_until_closed();
  } catch (const error&) {
    stopped = true;
  }
  if (!stopped) co_return;
  const detail::stop_shield shield(co_await detail::current_promise());
  self.abort("its close was stopped");
  co_await self.closed_.wait();
  throw error(errc::canceled, what);
}

void connection_core::reap(std::unique_ptr<connection_core> core, bool abort) noexcept {
  executor_core& home = core->home_;
  core->reaped_abruptly_ = abort;
  const bool elsewhere = !home.belongs_to_this_thread() || executor_core::current() != nullptr || home.is_driven();
  if (home.on_own_thread() || !elsewhere) return reap_at_home(std::move(core));
  home.submit(*core.release());
}

task<> connection_core::end_in_background(connection_core& self) {
  const std::unique_ptr<connection_core> owned(&self);
  self.reaped_abruptly_ ? self.abort("it was dropped") : self.begin_close();
  bool waited = true;
  try {
    co_await self.wait_until_closed();
  } catch (const std::bad_alloc&) {  // for its coroutine
    waited = false;
  }
  if (!waited) self.abort(without_memory_to_close);
  if (!waited) co_await self.closed_.wait();
  self.refill_.stop();
  if (self.refill_.running()) co_await self.refill_.ended();
  while (self.calls_ != 0) co_await self.unused_.wait();
}

// On its thread, where its executor may be between two runs, or about to go.
void connection_core::reap_at_home(std::unique_ptr<connection_core> core) noexcept try {
  if (core->closed_.is_set() && !core->refill_.running() && core->calls_ == 0) return;
  executor_core& home = core->home_;
  auto reaper = std::move(core->reaper_);
  static_cast<void>(core.release());  // it is the reaper's
  if (home.on_own_thread()) return run_in_background(home, std::move(reaper));
  const auto run_to_end = [](weft::detail::root_handle<void> work) -> task<> {
    run_in_background(*executor_core::current(), std::move(work));
    co_return;
  };
  executor_of(home).run(run_to_end(std::move(reaper)));
} catch (const std::bad_alloc&) {  // for what runs it to its end, where the executor does not run
  weft::detail::terminate_because("a connection could not be closed: there is no memory");
} catch (...) {
  weft::detail::terminate_because("a connection could not be closed: its executor runs no more");
}

// ---- exposures ----

// Of a connection that ends meanwhile, the link does not know why.
task<mr::remote_region> connection_core::open_to_peer(connection_core& self, mr::slice memory, mr::usage uses,
                                                      mr::detail::peer_gate* gate, const std::string& what) {
  try {
    const exposed_place opened = co_await self.link_->expose(memory, uses, gate);
    const mr::remote_place place{.fabric = self.fabric_, .address = opened.address, .key = opened.key};
    co_return mr::remote_region({&place, 1}, memory.size(), uses);
  } catch (const error& why) {
    const bool has_ended = why.code() == errc::closed || why.code() == errc::connection_failed;
    if (has_ended && self.has_ended()) throw self.why_ended().within(what);
    throw;
  }
}

task<exposure> connection_core::expose(connection_core& self, std::shared_ptr<link_keys> keys, mr::buffer memory,
                                       mr::usage uses) {
  const std::string what = begin_task(self, *keys, "expose a buffer to");
  if (self.has_ended()) throw self.why_ended().within(what);
  if (memory.size() == 0) throw error(errc::zero_length, what);
  if (memory.in_use()) throw error(errc::buffer_in_use, what);
  const call inside(self);
  auto lent = std::make_unique<lending>(keys);
  const mr::remote_region remote = co_await open_to_peer(self, memory.slice(), uses, nullptr, what);
  keys->opened(*lent, remote.places().front().key, remote.size());
  co_return exposure(lent.release(), std::move(memory), mr::region_pin(), remote);
}

void connection_core::confirm_retired(const mr::remote_key& key) {
  if (executor_core::current() != &home_) throw error(errc::wrong_thread, context("confirm retired memory of"));
  keys_->confirm(key);
}

task<exposure> connection_core::expose(connection_core& self, std::shared_ptr<link_keys> keys, mr::slice range,
                                       mr::usage uses) {
  const std::string what = begin_task(self, *keys, "expose memory of a region to");
  if (self.has_ended()) throw self.why_ended().within(what);
  if (range.size() == 0) throw error(errc::zero_length, what);
  if (range.domain() != &self.device_->domain()) throw error(errc::wrong_device, what);
  if (!mr::includes(range.usage(), mr::usage::bind_window)) {
    throw error(errc::access_denied, what + ": the memory is registered for " + mr::to_string(range.usage()));
  }
  mr::region_pin region(range);
  const call inside(self);
  auto lent = std::make_unique<lending>(keys);
  const mr::remote_region remote = co_await open_to_peer(self, range, uses, region.windows(), what);
  keys->opened(*lent, remote.places().front().key, remote.size());
  co_return exposure(lent.release(), mr::buffer(), std::move(region), remote);
}

}  // namespace weft::net

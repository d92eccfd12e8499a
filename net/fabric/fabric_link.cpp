// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/fabric_link.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

namespace weft::net::fabric {
namespace {

constexpr std::size_t batch_size = 16;
// Pauses between polls of a provider without wait objects: while something is in flight, and otherwise.
constexpr auto busy_tick = std::chrono::microseconds(200);
constexpr auto idle_tick = std::chrono::milliseconds(2);

constexpr std::size_t index(access_kind what) noexcept { return static_cast<std::size_t>(what); }

void* desc_of(const mr::slice& part, std::size_t fabric) noexcept {
  // As libfabric gave it: fi_mr_desc(3). NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(part.record()->in(fabric).local_key);
}

std::uint64_t bytes_of(const work_request& work) noexcept {
  std::uint64_t sum = work.own.size();
  for (const mr::slice& part : work.segments) sum += part.size();
  return sum;
}

// How long an access may take before the peer is asked whether it is allowed; and the pause before it is asked again.
constexpr auto doubt_time = std::chrono::milliseconds(50);

// How long the peer may take to answer that it does not use memory that was taken back; and while the device is frozen.
constexpr auto fence_patience = std::chrono::seconds(5);
constexpr auto frozen_patience = std::chrono::milliseconds(500);

// The most such questions without an answer.
constexpr std::size_t most_unanswered = 64;

// Longer times mean for ever, and could overflow.
constexpr auto longest_patience = std::chrono::hours(24 * 365);

bool is_access(work_kind what) noexcept { return what != work_kind::send; }

std::uint8_t rights_of(work_kind what) noexcept {
  if (what == work_kind::write) return control_record::writing;
  return what == work_kind::read ? control_record::reading : control_record::reading | control_record::writing;
}

}  // namespace

// The pieces of a request's memory, in libfabric's form.
struct fabric_link::pieces {
  std::array<iovec, max_segments + 1> ranges{};
  std::array<void*, max_segments + 1> descs{};
  std::size_t count = 0;
  std::size_t bytes = 0;

  void add(void* data, std::size_t size, void* desc) noexcept {
    ranges[count] = {.iov_base = data, .iov_len = size};
    descs[count++] = desc;
    bytes += size;
  }
  void add(std::span<const mr::slice> segments, std::size_t fabric) noexcept {
    for (const mr::slice& part : segments) {
      if (part.size() != 0) add(part.data(), part.size(), desc_of(part, fabric));
    }
  }
};

fabric_link::fabric_link(established&& made)
    : home_(*executor_core::current()),
      made_(std::move(made)),
      calls_(made_.endpoint->calls()),
      order_(made_.endpoint->home().order()) {
  const fi_info& about = made_.endpoint->home().info();
  capabilities_.checksum = true;
  capabilities_.outgoing_reads = made_.outgoing_reads;
  capabilities_.incoming_reads = made_.incoming_reads;
  capabilities_.invalidate = true;
  capabilities_.solicited = true;
  capabilities_.explains_end = true;
  capabilities_.max_message_bytes = std::min<std::uint64_t>(about.ep_attr->max_msg_size, UINT32_MAX);
  const std::size_t parts = std::min(max_segments, about.tx_attr->iov_limit);
  capabilities_.max_parts = capabilities_.max_read_parts = static_cast<std::uint8_t>(parts);
  made_.dead_peer_after = std::min<std::chrono::milliseconds>(made_.dead_peer_after, longest_patience);
  made_.memory->home().add(*this);
}

fabric_link::~fabric_link() {
  if (made_.endpoint == nullptr) return;  // closed, or given up
  home_.disarm(*this);
  {
    const std::lock_guard lock(mail_mutex_);
    takes_mail_ = false;
    if (is_mail_on_its_way_) region_mail::orphan(std::move(mail_));
  }
  close_endpoint();
}

// Thaws the device last, because the peer can reach closed regions until the endpoint is closed.
void fabric_link::close_endpoint() noexcept {
  made_.endpoint.reset();
  made_.memory->home().remove(*this);
  drop_region_mail();
}

// ---- set-up ----

void fabric_link::begin_set_up() noexcept {
  is_setting_up_ = true;
  const std::lock_guard lock(mail_mutex_);
  takes_mail_ = true;
  if (mail_keys_.empty() && unasked_ == 0) return;
  is_mail_on_its_way_ = true;
  home_.submit(*mail_);
}

task<> fabric_link::end_set_up() {
  {
    const std::lock_guard lock(mail_mutex_);
    takes_mail_ = false;
  }
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  while (is_mail_on_its_way()) {
    quiet_.reset();
    co_await quiet_.wait();
  }
  home_.disarm(*this);
  is_setting_up_ = false;
}

task<> fabric_link::give_up() {
  const auto work = [this] { close_endpoint(); };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  co_await weft::detail::offload_for_resources(work);
}

void fabric_link::hurry_set_up() noexcept {
  if (timer::armed() || was_late_) return;
  if (!home_.try_arm(*this, home_.now() + frozen_patience)) break_set_up_off();
}

void fabric_link::break_set_up_off() noexcept {
  was_late_ = true;
  made_.socket->calls().shutdown(made_.socket->fd(), SHUT_RDWR);
}

void fabric_link::start(link_events& events, const link_parameters& parameters) {
  receives_ = std::make_unique<posted_receive[]>(parameters.receive_depth);
  receive_depth_ = parameters.receive_depth;
  arrived_.resize(receive_depth_);
  exposures_.reserve(8);
  native_ = parameters.native;
  finisher_ = weft::detail::root_handle<void>(finish());
  home_.add_poller(*this);
  life_.begin(events);
  {
    const std::lock_guard lock(mail_mutex_);
    takes_mail_ = true;
  }
  home_.submit(*this);
}

void fabric_link::run_on_executor() noexcept {
  if (life_.is_leaving()) return;
  await_input();
  take_region_mail();
  if (!life_.is_leaving() && !made_.endpoint->can_wait()) tick_later();
}

// ---- posting ----

bool fabric_link::furnish(work_request& work) noexcept {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  ::new (work.corner) posted_request(work);
  return true;
}

void fabric_link::post(work_request& work) noexcept {
  auto& item = *static_cast<posted_request*>(work.corner);
  item.next = nullptr;
  item.handed_over = item.completed = 0;
  item.failed = item.cleared = item.refused = item.awaited = false;
  const bool moves = work.kind == work_kind::send || bytes_of(work) != 0;
  item.steps = static_cast<std::uint8_t>((moves ? 1 : 0) + (work.immediate ? 1 : 0));
  (last_ != nullptr ? last_->next : first_) = &item;
  last_ = &item;
  if (unsent_ == nullptr) unsent_ = &item;
}

void fabric_link::post_receive(receive_work& work) noexcept {
  if (life_.is_leaving()) return life_.events().receive_flushed(work);
  posted_receive& item = receives_[work.slot];
  item.work = &work;
  item.main.kind = operation::receive;
  item.main.owner = &item;
  item.next = nullptr;
  (last_receive_ != nullptr ? last_receive_->next : first_receive_) = &item;
  last_receive_ = &item;
}

void fabric_link::hand_over_receives() noexcept {
  const std::size_t most = made_.endpoint->home().info().rx_attr->size;
  while (first_receive_ != nullptr && receives_with_provider_ < most) {
    const ssize_t result = hand_over(*first_receive_);
    if (result == -FI_EAGAIN) return tick_later();  // defect: no room for a receive
    if (result < 0) return fail(weft::detail::make_error(errc::connection_failed, "post a receive"));
    ++receives_with_provider_;
    first_receive_ = first_receive_->next;
    if (first_receive_ == nullptr) last_receive_ = nullptr;
  }
}

// A message's trailer follows its payload: in the receive's memory as far as there is room, and else in the staging
// memory.
ssize_t fabric_link::hand_over(posted_receive& item) noexcept {
  const mr::slice& memory = item.work->memory;
  pieces where;
  where.add(memory.data(), memory.size(), desc_of(memory, made_.memory->fabric()));  // defect: hand a receive over
  where.add(made_.endpoint->tail_of(item.work->slot), message_trailer::bytes, made_.endpoint->staging_desc());
  fi_msg what{};
  what.msg_iov = where.ranges.data();
  what.desc = where.descs.data();
  what.iov_count = where.count;
  what.addr = FI_ADDR_UNSPEC;
  what.context = &item.main.room;
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  return calls_.recvmsg(made_.endpoint->get(), &what, FI_COMPLETION);
}

access_kind fabric_link::next_kind(const posted_request& item) const noexcept {
  const bool wakes = item.work->immediate && item.handed_over + 1 == item.steps;
  return wakes ? access_kind::send : kind_of(item.work->kind);
}

bool fabric_link::may_start(access_kind kind) const noexcept {
  const bool asks = kind == access_kind::read || kind == access_kind::atomic;
  const std::uint32_t asked = under_way_[index(access_kind::read)] + under_way_[index(access_kind::atomic)];
  if (asks && asked >= capabilities_.outgoing_reads) return false;
  for (std::size_t earlier = 0; earlier != access_kinds; ++earlier) {
    // defect: take the order of a provider
    if (under_way_[earlier] != 0 && !order_.keeps(kind, static_cast<access_kind>(earlier))) return false;
  }
  return true;
}

void fabric_link::hand_over_requests() noexcept {
  const std::size_t most = made_.endpoint->home().info().tx_attr->size;
  blocked_ = false;
  while (unsent_ != nullptr && !life_.is_leaving() && !doubting_) {
    posted_request& item = *unsent_;
    if (item.handed_over == item.steps) {
      unsent_ = item.next;
      continue;
    }
    const access_kind kind = next_kind(item);
    if (with_provider_ >= most || !may_start(kind)) return;
    const ssize_t result = hand_over(item);  // defect: take a message for sent
    if (result == -FI_EAGAIN) {
      blocked_ = true;
      return tick_later();
    }
    if (result < 0) {
      const std::string_view words = calls_.strerror(static_cast<int>(-result));
      return fail(weft::detail::make_error(errc::connection_failed, words));
    }
    if (with_provider_ == 0) moved_at_ = home_.coarse_now();
    ++under_way_[index(kind)];
    ++item.handed_over;
    ++with_provider_;
    if (kind != access_kind::send) tick_later();  // a refused access may never complete
  }
}

std::uint64_t fabric_link::flags_of(access_kind kind) const noexcept {
  // Always for a write, because a refused write must not count as done.
  // defect: take a write for done
  const bool delivered = kind == access_kind::write || order_.has_to_be_delivered(kind);
  return FI_COMPLETION | (delivered ? FI_DELIVERY_COMPLETE : 0);
}

ssize_t fabric_link::hand_over(posted_request& item) noexcept {
  const work_request& work = *item.work;
  if (work.immediate && item.handed_over + 1 == item.steps) return send_wake(item);
  switch (work.kind) {
    case work_kind::send:
      return send(item);
    case work_kind::write:
      return access(item, true);
    case work_kind::read:
      return access(item, false);
    case work_kind::fetch_add:
    case work_kind::compare_swap:
      break;
  }
  return change(item);
}

ssize_t fabric_link::send(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const source = made_.endpoint->source_of(work.slot);
  message_trailer trailer{.number = messages_sent_, .token = made_.peer_token};
  if (work.solicited) trailer.flags |= message_trailer::solicited;
  if (work.invalidate) {
    trailer.flags |= message_trailer::invalidates;
    trailer.key = *work.invalidate;
  }
  assert(work.own.size() <= endpoint::own_bytes);
  std::ranges::copy(work.own, source);
  std::byte* const behind = source + work.own.size();
  pack(trailer, std::span<std::byte, message_trailer::bytes>(behind, message_trailer::bytes));
  pieces from;
  from.add(work.segments, made_.memory->fabric());
  from.add(source, work.own.size() + message_trailer::bytes, made_.endpoint->staging_desc());
  return send(from, item.main);
}

ssize_t fabric_link::send_wake(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const source = made_.endpoint->source_of(work.slot);
  message_trailer trailer{.flags = message_trailer::immediate,
                          .number = messages_sent_,
                          .value = *work.immediate,
                          .token = made_.peer_token};
  if (work.solicited) trailer.flags |= message_trailer::solicited;
  pack(trailer, std::span<std::byte, message_trailer::bytes>(source, message_trailer::bytes));
  pieces from;
  from.add(source, message_trailer::bytes, made_.endpoint->staging_desc());
  return send(from, item.wake);
}

ssize_t fabric_link::send(pieces& from, operation& part) noexcept {
  fi_msg what{};
  what.msg_iov = from.ranges.data();
  what.desc = from.descs.data();
  what.iov_count = from.count;
  what.addr = made_.endpoint->peer();
  what.context = &part.room;
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  const ssize_t result = calls_.sendmsg(made_.endpoint->get(), &what, flags_of(access_kind::send));
  if (result >= 0) ++messages_sent_;
  return result;
}

ssize_t fabric_link::access(posted_request& item, bool writes) noexcept {
  const work_request& work = *item.work;
  pieces own;
  own.add(work.segments, made_.memory->fabric());
  if (!work.own.empty()) {
    assert(!writes && work.own.size() <= endpoint::own_bytes);
    own.add(made_.endpoint->sink_of(work.slot), work.own.size(), made_.endpoint->staging_desc());
  }
  // defect: cut a key off
  const fi_rma_iov there{.addr = work.remote_address, .len = own.bytes, .key = work.remote_key};
  fi_msg_rma what{};
  what.msg_iov = own.ranges.data();
  what.desc = own.descs.data();
  what.iov_count = own.count;
  what.addr = made_.endpoint->peer();
  what.rma_iov = &there;
  what.rma_iov_count = 1;
  what.context = &item.main.room;
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  if (writes) return calls_.writemsg(made_.endpoint->get(), &what, flags_of(access_kind::write));
  return calls_.readmsg(made_.endpoint->get(), &what, FI_COMPLETION);
}

// Operands and answer are in the staging memory, which the provider may access.
ssize_t fabric_link::change(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const operands = made_.endpoint->source_of(work.slot);
  std::byte* const compare = operands + sizeof work.operand;
  std::memcpy(operands, &work.operand, sizeof work.operand);
  std::memcpy(compare, &work.compare, sizeof work.compare);
  void* desc = made_.endpoint->staging_desc();
  const fi_ioc operand{.addr = operands, .count = 1};
  const fi_ioc compared{.addr = compare, .count = 1};
  fi_ioc answer{.addr = made_.endpoint->sink_of(work.slot), .count = 1};
  const fi_rma_ioc there{.addr = work.remote_address, .count = 1, .key = work.remote_key};
  fi_msg_atomic what{};
  what.msg_iov = &operand;
  what.desc = &desc;
  what.iov_count = 1;
  what.addr = made_.endpoint->peer();
  what.rma_iov = &there;
  what.rma_iov_count = 1;
  what.datatype = FI_UINT64;
  what.context = &item.main.room;
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  if (work.kind == work_kind::fetch_add) {
    what.op = FI_SUM;
    return calls_.fetch_atomicmsg(made_.endpoint->get(), &what, &answer, &desc, FI_COMPLETION);
  }
  what.op = FI_CSWAP;
  return calls_.compare_atomicmsg(made_.endpoint->get(), &what, &compared, &desc, &answer, &desc, FI_COMPLETION);
}

// ---- completions ----

std::size_t fabric_link::poll(std::size_t budget) noexcept {
  if (life_.is_leaving()) return 0;
  hand_over_receives();
  hand_over_requests();
  complete_ended();  // requests that take no operation
  std::size_t found = read_queue(budget);
  if (found != 0) {
    hand_over_receives();
    hand_over_requests();
  }
  advance_end();
  if (std::exchange(must_not_sleep_, false)) ++found;
  return found;
}

std::size_t fabric_link::read_queue(std::size_t budget) noexcept {
  std::array<fi_cq_msg_entry, batch_size> batch;
  std::size_t total = 0;
  while (total < budget && !life_.is_leaving()) {
    const std::size_t wanted = std::min(batch.size(), budget - total);
    const ssize_t found = look(batch.data(), wanted);
    if (found == -FI_EAVAIL) {
      take_failure();
      ++total;
      continue;
    }
    if (found == -FI_EAGAIN || found == 0) break;
    if (found < 0) {
      fail(weft::detail::make_error(errc::connection_failed, "read a completion queue"));
      break;
    }
    const auto count = static_cast<std::size_t>(found);
    for (std::size_t i = 0; i != count; ++i) {
      if (batch[i].op_context != nullptr) completed(*static_cast<operation*>(batch[i].op_context), batch[i].len);
    }
    total += count;
    if (count < wanted) break;
  }
  return total;
}

ssize_t fabric_link::look(fi_cq_msg_entry* found, std::size_t most) noexcept {
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) {
    tick_later();
    return -FI_EAGAIN;
  }
  return calls_.cq_read(made_.endpoint->queue(), found, most);
}

void fabric_link::take_failure() noexcept {
  fi_cq_err_entry what{};
  ssize_t result = 0;
  {
    const entry inside = made_.endpoint->home().enter();
    result = calls_.cq_readerr(made_.endpoint->queue(), &what);
  }
  if (result == -FI_EAGAIN) return;
  if (result < 0) return fail(weft::detail::make_error(errc::connection_failed, "read a completion queue's error"));
  failed(what);
}

void fabric_link::completed(operation& item, std::size_t bytes) noexcept {
  if (item.kind == operation::receive) --receives_with_provider_;
  if (item.kind == operation::receive) return received(*static_cast<posted_receive*>(item.owner), bytes);
  auto& request = *static_cast<posted_request*>(item.owner);
  step_ended(request, item);
  complete_ended();
}

void fabric_link::step_ended(posted_request& item, const operation& part) noexcept {
  const access_kind kind = part.kind == operation::wake ? access_kind::send : kind_of(item.work->kind);
  --under_way_[index(kind)];
  ++item.completed;
  --with_provider_;
  moved_at_ = home_.coarse_now();
  stands_since_.reset();
  if (item.awaited && item.completed == item.handed_over) tell_of_end(item);  // defect: do not tell the owner
}

// In posting order, whatever order the provider has.
void fabric_link::complete_ended() noexcept {
  while (first_ != nullptr && first_->completed == first_->steps && !first_->failed && !first_->refused) {
    posted_request& item = *first_;
    if (unsent_ == &item) unsent_ = item.next;  // the request takes no operation
    first_ = item.next;
    if (first_ == nullptr) last_ = nullptr;
    work_request& work = *item.work;
    if (work.kind != work_kind::send && !work.own.empty()) {
      std::memcpy(work.own.data(), made_.endpoint->sink_of(work.slot), work.own.size());
    }
    life_.events().completed(work, work_status::done);
  }
}

void fabric_link::failed(const fi_cq_err_entry& what) noexcept {
  if (what.op_context == nullptr) {
    return doubt(calls_.strerror(what.err));
  }
  operation& item = *static_cast<operation*>(what.op_context);
  if (item.kind != operation::receive) {
    return request_failed(*static_cast<posted_request*>(item.owner), item, what);
  }
  if (what.err == FI_ECANCELED) return;  // flushed with the rest
  if (what.err == FI_ETRUNC || what.err == FI_EMSGSIZE) {
    return fail(weft::detail::make_error(errc::protocol_error, "a message is larger than its receive"),
                control_record::rules);
  }
  doubt(calls_.strerror(what.err));
}

void fabric_link::request_failed(posted_request& item, operation& part, const fi_cq_err_entry& what) noexcept {
  item.failed = true;  // first, because step_ended() may lose the peer, which completes all that counts as done
  // defect: take a request that failed
  step_ended(item, part);
  doubt(calls_.strerror(what.err));
}

void fabric_link::received(posted_receive& item, std::size_t bytes) noexcept {
  if (life_.has_ended()) return;  // flushed with the rest
  const mr::slice& memory = item.work->memory;
  const std::byte* const tail = made_.endpoint->tail_of(item.work->slot);
  std::array<std::byte, message_trailer::bytes> packed;
  if (bytes < packed.size() || bytes > memory.size() + packed.size()) {
    return fail(weft::detail::make_error(errc::protocol_error, "a message without a trailer"), control_record::rules);
  }
  item.bytes = bytes - packed.size();
  const std::size_t inside = std::min(memory.size() - item.bytes, packed.size());
  std::copy_n(memory.data() + item.bytes, inside, packed.begin());
  std::copy_n(tail, packed.size() - inside, packed.begin() + static_cast<std::ptrdiff_t>(inside));
  item.trailer = unpack_trailer(packed);
  // defect: listen to strangers
  if (item.trailer.token != made_.own_token) return post_receive(*item.work);  // from a stranger
  const std::uint32_t ahead = item.trailer.number - messages_received_;        // defect: ignore the numbers
  posted_receive** const place = ahead < receive_depth_ ? &arrived_[(next_arrival_ + ahead) % receive_depth_] : nullptr;
  if (place == nullptr || *place != nullptr) {
    return fail(weft::detail::make_error(errc::protocol_error, "a message has come twice, or none before it"),
                control_record::rules);
  }
  *place = &item;
  deliver();
}

void fabric_link::deliver() noexcept {
  if (std::exchange(delivering_, true)) return;
  while (!life_.has_ended() && receive_depth_ != 0) {
    posted_receive*& place = arrived_[next_arrival_];
    if (place == nullptr) break;
    posted_receive& item = *place;
    const bool invalidates = (item.trailer.flags & message_trailer::invalidates) != 0;
    if (invalidates && !has_invalidated(item)) break;
    place = nullptr;
    next_arrival_ = (next_arrival_ + 1) % receive_depth_;
    ++messages_received_;
    arrival came{.bytes = item.bytes, .solicited = (item.trailer.flags & message_trailer::solicited) != 0};
    if (invalidates) came.invalidated_key = item.trailer.key;
    if ((item.trailer.flags & message_trailer::immediate) != 0) came.immediate = item.trailer.value;
    receive_work& work = *std::exchange(item.work, nullptr);
    life_.events().received(work, came);
  }
  delivering_ = false;
}

// False if a worker has to close the region first, or the key was refused.
bool fabric_link::has_invalidated(const posted_receive& item) noexcept {
  if (invalidating_ != nullptr) return false;
  if (std::exchange(invalidated_, false)) return true;
  exposure* const found = find(item.trailer.key);
  if (found == nullptr || found->state != exposure::open) {
    refusal_ = {.is_peers = true, .key = item.trailer.key};
    fail(weft::detail::make_error(errc::protocol_error, "the peer revokes a key that this link has not given it"),
         control_record::refused_you, item.trailer.key);
    return false;
  }
  invalidating_ = found;
  close(*found);
  return std::exchange(invalidated_, false);
}

// ---- doubt ----

void fabric_link::doubt(std::string_view words) noexcept {
  if (life_.is_leaving()) return;
  if (!std::exchange(doubting_, true)) doubt_words_ = words;
  if (!asked_) ask();
}

// The oldest access that has not completed well, and that the peer has not cleared.
fabric_link::posted_request* fabric_link::next_suspect() noexcept {
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    const bool is_open = each->handed_over != 0 && (each->failed || each->completed != each->handed_over);
    if (is_open && is_access(each->work->kind) && !each->cleared) return each;
    if (each == unsent_) break;
  }
  return nullptr;
}

// Without a suspect the question is empty: once it is answered, all records that the peer has sent before have arrived,
// such as one about an access of its own.
void fabric_link::ask() noexcept {
  suspect_ = next_suspect();
  asked_ = true;
  if (suspect_ == nullptr) return tell({.kind = control_record::asks});
  const work_request& work = *suspect_->work;
  tell({.kind = control_record::asks,
        .reason = rights_of(work.kind),
        .key = work.remote_key,
        .address = work.remote_address,
        .length = bytes_of(work)});
}

void fabric_link::take_question(const control_record& asked) noexcept {
  std::uint64_t needed = 0;
  if ((asked.reason & control_record::reading) != 0) needed |= FI_REMOTE_READ;
  if ((asked.reason & control_record::writing) != 0) needed |= FI_REMOTE_WRITE;
  bool allowed = needed == 0 || made_.memory->find(asked.key).allows(asked.address, asked.length, needed);
  for (const auto& item : exposures_) {
    if (allowed) break;
    const bool is_meant = item->state == exposure::open && item->key == asked.key;
    allowed = is_meant && item->opened.allows(asked.address, asked.length, needed);
  }
  // A peer that is refused ends the connection, unless the access has completed meanwhile. So a peer that asks again
  // and again guesses keys.
  constexpr unsigned most_refusals = 16;
  if (!allowed && ++refusals_told_ > most_refusals) {
    return fail(weft::detail::make_error(errc::protocol_error, "the peer asks for one key after another"),
                control_record::rules);
  }
  const std::uint8_t word = allowed ? control_record::reading : control_record::aborted;
  tell({.kind = control_record::answers, .reason = word, .key = asked.key});
}

void fabric_link::take_answer(const control_record& answer) noexcept {
  if (!std::exchange(asked_, false)) {
    return fail(weft::detail::make_error(errc::protocol_error, "the peer answers what nobody has asked"),
                control_record::rules);
  }
  if (made_.memory->home().is_frozen()) {  // the queue cannot be read, so the peer is asked again later
    suspect_ = nullptr;
    return tick_later();
  }
  read_queue(std::numeric_limits<std::size_t>::max());
  if (life_.is_leaving() || asked_) return;
  if (stands_still()) return lose_peer("the fabric moves nothing, although the peer answers");
  if (suspect_ == nullptr) {
    if (doubting_) lose_peer(doubt_words_);
    return;
  }
  posted_request* const suspect = std::exchange(suspect_, nullptr);
  // The suspect may have completed meanwhile, and its slot may be in use again.
  bool is_open = false;
  for (posted_request* each = first_; each != nullptr && !is_open; each = each->next) is_open = each == suspect;
  if (!is_open) {
    if (doubting_) ask();
    return;
  }
  const bool allowed = answer.reason == control_record::reading;
  if (allowed) {
    suspect->cleared = true;
    if (doubting_) ask();
    return;
  }
  suspect->refused = true;
  const std::uint64_t key = suspect->work->remote_key;
  refusal_ = {.is_peers = false, .key = key};
  const std::string_view words = doubting_ ? doubt_words_ : std::string_view("the provider keeps silent about it");
  fail(weft::detail::make_error(errc::remote_access, words), control_record::refused_us, key);
}

// Whether nothing has completed for dead_peer_after although the peer's program runs. The time counts from its first
// answer, so that a program that was stopped has time to catch up. Requests may take a second more for each MiB.
bool fabric_link::stands_still() noexcept {
  if (made_.dead_peer_after == std::chrono::milliseconds::zero()) return false;
  // A message to a foreign peer may wait for a receive as long as the peer likes.
  if (native_ ? with_provider_ == 0 : accesses_under_way() == 0) return false;
  if (!stands_since_) stands_since_ = home_.now();
  std::uint64_t bytes = 0;
  for (const posted_request* each = first_; each != nullptr && each != unsent_; each = each->next) {
    bytes += bytes_of(*each->work);
  }
  return home_.now() - *stands_since_ >= made_.dead_peer_after + std::chrono::seconds(bytes >> 20);
}

// ---- sleeping ----

// A provider may have work that no descriptor signals: fi_trywait(3). The executor polls once more after this.
void fabric_link::arm() noexcept {
  if (life_.is_leaving() || !made_.endpoint->can_wait()) return;
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) return tick_later();
  // defect: sleep without asking
  must_not_sleep_ = calls_.trywait(made_.endpoint->home().fabric(), made_.endpoint->queue()) == -FI_EAGAIN;
  if (first_ != nullptr) tick_later();  // the provider may have to retransmit, or may make no more progress
}

void fabric_link::tick_later() noexcept {
  if (timer::armed() || life_.is_leaving()) return;  // defect: no room for a request
  const bool needs_us = !made_.endpoint->can_wait() || blocked_ || first_receive_ != nullptr;
  const duration busy = needs_us ? duration(busy_tick) : duration(doubt_time / 4);
  const duration pause = first_ == nullptr && first_receive_ == nullptr ? std::max(busy, duration(idle_tick)) : busy;
  static_cast<void>(home_.try_arm(*this, home_.now() + pause));
}

void fabric_link::expired() noexcept {
  if (is_setting_up_) return break_set_up_off();
  if (life_.is_leaving()) return;
  poll(batch_size);
  if (life_.is_leaving()) return;
  const duration patience =
      accesses_under_way() != 0 ? duration(doubt_time) : duration(std::max(made_.dead_peer_after / 4, doubt_time));
  const bool is_late = doubting_ || (with_provider_ != 0 && home_.now() - moved_at_ >= patience);
  if (is_late && !asked_ && !made_.memory->home().is_frozen()) {
    for (posted_request* each = first_; each != nullptr; each = each->next) each->cleared = false;
    moved_at_ = home_.now();
    ask();
  }
  if (asking_exposures_ != 0 && !life_.peer_has_left()) take_input();  // the answers may be here, if this end was late
  if (life_.is_leaving()) return;
  end_if_fences_are_late();
  if (!made_.endpoint->can_wait() || with_provider_ != 0 || doubting_ || asking_exposures_ != 0) tick_later();
}

// ---- what the peer says ----

void fabric_link::await_input() noexcept {
  if (input_wait_.in_progress() || life_.peer_has_left() || life_.is_leaving()) return;
  home_.io().start(input_wait_);
}

void fabric_link::on_readable(int result) noexcept {
  quiet_.set();
  if (life_.is_leaving()) return;
  if (result < 0 && result != -ECANCELED) return lose_peer("the socket to it has failed");
  take_input();
  await_input();
  if (!life_.is_leaving()) advance_end();
}

// Takes a bounded number of records at a time, because a peer may go on sending them.
void fabric_link::take_input() noexcept {
  constexpr int most_records = 64;
  for (int looks = 0; looks != most_records && !life_.is_leaving(); ++looks) {
    iovec where{.iov_base = input_.data() + input_bytes_, .iov_len = input_.size() - input_bytes_};
    msghdr message{};
    message.msg_iov = &where;
    message.msg_iovlen = 1;
    const ssize_t count = home_.io().try_receive(*made_.socket, message);
    if (count == -EAGAIN || count == -EINTR) return;
    if (count <= 0) {
      life_.peer_left();
      if (life_.peer_has_finished() && life_.has_finished() && count == 0)
        peer_drained_ = true;  // a peer closes only after that
      // A peer that has not finished may have died during a write, the rest of which is still to be placed here.
      const bool is_orderly = peer_drained_ && peer_messages_;
      if (!is_orderly) return lose_peer(count == 0 ? "it has closed the socket" : "the socket to it was reset");
      return fence_all();
    }
    input_bytes_ += static_cast<std::size_t>(count);
    if (input_bytes_ != input_.size()) continue;
    input_bytes_ = 0;
    take(unpack(std::span<const std::byte, control_record::bytes>(input_)));
  }
}

void fabric_link::take(const control_record& what) noexcept {
  using weft::detail::make_error;
  switch (what.kind) {
    case control_record::finished:
      if (peer_messages_) break;
      peer_messages_ = what.messages;
      return;
    case control_record::drained:
      if (!life_.has_finished()) break;
      peer_drained_ = true;
      return;
    case control_record::asks:
      return take_question(what);
    case control_record::answers:
      return take_answer(what);
    case control_record::fences:
      return take_fence_question(what);
    case control_record::fenced:
      return take_fence(what);
    case control_record::broken: {
      read_queue(std::numeric_limits<std::size_t>::max());  // what the peer has sent before
      if (life_.is_leaving()) return;
      const bool first = !life_.has_ended();
      if (what.reason == control_record::refused_you) {
        if (first) refusal_ = {.is_peers = false, .key = what.key};
        end(false, make_error(errc::remote_access, "the peer has refused an access"));
      } else if (what.reason == control_record::refused_us) {
        if (first) refusal_ = {.is_peers = true, .key = what.key};
        end(false, make_error(errc::protocol_error, "the peer has used a key that opens nothing to it"));
      } else if (what.reason == control_record::rules) {
        end(false, make_error(errc::connection_failed, "the peer says that this end has broken the protocol"));
      } else {
        end(false, make_error(errc::peer_vanished, "the peer has broken the connection off"));
      }
      return begin_finish();
    }
    default:
      break;
  }
  fail(make_error(errc::protocol_error, "the peer says over the socket what makes no sense"), control_record::rules);
}

// The socket's buffer has room for the few records that a connection sends.
void fabric_link::tell(const control_record& what) noexcept {
  auto bytes = pack(what);
  iovec from{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &from;
  message.msg_iovlen = 1;
  const ssize_t result = made_.socket->calls().sendmsg(made_.socket->fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (result != static_cast<ssize_t>(bytes.size()) && !life_.is_leaving()) lose_peer("the socket to it takes nothing");
}

// ---- the end ----

void fabric_link::end(bool orderly, const error& why) noexcept {
  if (life_.has_ended()) return;
  failed_alone_ = why.code() == errc::connection_failed;
  life_.end(orderly, why);
}

void fabric_link::fail(const error& why, control_record::reason_t reason, std::uint64_t key) noexcept {
  if (life_.is_leaving()) return;
  if (!life_.has_ended()) tell({.kind = control_record::broken, .reason = reason, .key = key});
  end(false, why);
  begin_finish();
}

// Reads the queue a last time. The provider may report the end of the peer there, which leads here again.
void fabric_link::lose_peer(std::string_view words) noexcept {
  if (life_.is_leaving() || std::exchange(losing_, true)) return;
  read_queue(std::numeric_limits<std::size_t>::max());
  if (life_.is_leaving()) return;
  end(false, weft::detail::make_error(errc::peer_vanished, words));
  begin_finish();
}

void fabric_link::shut_down() noexcept { life_.shut_down(); }

void fabric_link::abort(std::string_view why) noexcept {
  if (life_.is_closed()) return;
  fail(weft::detail::make_error(errc::closed, why));
}

void fabric_link::refuse(violation what, std::string_view why) noexcept {
  if (life_.is_closed()) return;
  const auto reason = what == violation::revoking ? control_record::refused_you : control_record::rules;
  fail(weft::detail::make_error(errc::protocol_error, why), reason);
}

// Takes the next steps of closing that are possible; called whenever a condition of theirs may have changed.
void fabric_link::advance_end() noexcept {
  if (life_.is_leaving()) return;
  if (peer_messages_ && *peer_messages_ == messages_received_ && !life_.peer_has_finished()) {
    life_.peer_finished();
    tell({.kind = control_record::drained});
    const bool orderly = native_ || first_ == nullptr;
    end(orderly, weft::detail::make_error(orderly ? errc::peer_closed : errc::peer_vanished, "the peer has closed"));
  }
  if (life_.is_leaving()) return;
  if (life_.is_finishing() && first_ == nullptr) {
    life_.finish();
    tell({.kind = control_record::finished, .messages = messages_sent_});
  }
  if (life_.has_finished() && life_.peer_has_finished() && peer_drained_) begin_finish();
}

void fabric_link::begin_finish() noexcept {
  if (life_.is_leaving()) return;
  life_.leave();
  run_in_background(home_, std::move(finisher_), "the end of a connection over libfabric");
}

task<> fabric_link::finish() {
  home_.disarm(*this);
  if (input_wait_.in_progress()) home_.io().cancel(input_wait_);
  while (input_wait_.in_progress() || closing_exposures_ != 0 || exposing_ != 0) {
    quiet_.reset();
    co_await quiet_.wait();
  }
  home_.remove_poller(*this);
  for (const auto& item : exposures_) {
    if (item->state == exposure::open) item->state = exposure::swept;
  }
  const auto work = [this] {
    for (const auto& item : exposures_) {
      if (item->state == exposure::swept) item->region.reset();
    }
    made_.endpoint.reset();
    {
      const std::lock_guard lock(end_mutex_);
      endpoint_is_closed_ = true;
    }
    for (const auto& item : exposures_) item->go_with_endpoint();
  };
  co_await weft::detail::offload_for_resources(work);  // defect: give memory back
  made_.memory->home().remove(*this);
  drop_region_mail();
  while (is_mail_on_its_way()) {
    quiet_.reset();
    co_await quiet_.wait();
  }
  for (const auto& item : exposures_) {
    if (item->who != nullptr) std::exchange(item->who, nullptr)->revoked();
  }
  flush_rest();
  made_.socket->close();
  life_.close();
  life_.tell_closed();
}

void fabric_link::flush_rest() noexcept {
  for (std::size_t slot = 0; slot != receive_depth_; ++slot) {
    flush_requests();
    receive_work* const work = std::exchange(receives_[slot].work, nullptr);
    if (work != nullptr) life_.events().receive_flushed(*work);
  }
  flush_requests();
}

void fabric_link::flush_requests() noexcept {
  while (first_ != nullptr) {
    posted_request& item = *first_;
    first_ = item.next;
    if (first_ == nullptr) last_ = nullptr;
    life_.events().completed(*item.work, item.refused ? work_status::access_denied : work_status::flushed);
  }
}

// ---- keys ----

task<exposed_place> fabric_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate*) {
  const device& about = made_.memory->home();
  constexpr mr::usage possible =
      mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::flush_visibility;
  if (mr::overlaps(uses, ~possible) || uses == mr::usage::none) {
    throw error(errc::not_supported, "expose memory: the possible uses are " + mr::to_string(possible));
  }
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  if (memory.record()->region != nullptr && !about.can_freeze()) {
    throw error(errc::not_supported,
                "expose a part of a region: this provider works on behind the program's back, so only a pool's buffers "
                "can be taken back from it");
  }
  exposures_.reserve(exposures_.size() + 1);
  auto made = std::make_unique<exposure>(*this);
  ++exposing_;
  struct guard {
    fabric_link& self;
    ~guard() {
      --self.exposing_;
      self.quiet_.set();
    }
  } const counted{*this};
  exposure& item = *made;
  const auto work = [&about, &item, memory, uses, bound = made_.endpoint->get()] {
    item.region = register_region(about, memory.bytes(), rights_of_peers(uses), bound, "expose memory");
  };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  {
    const weft::detail::stop_shield shield(promise);  // or a stop would leak the region
    co_await weft::detail::offload_for_resources(work);
  }
  const bool stopped = promise.get_stop_token().stop_requested();  // the stop itself may have ended the link
  if (life_.has_ended() || stopped) {
    const auto undo = [&item] { item.region.reset(); };
    const weft::detail::stop_shield shield(promise);
    co_await weft::detail::offload_for_resources(undo);
    throw error(stopped ? errc::canceled : errc::closed, "expose a buffer");
  }
  exposures_.push_back(std::move(made));
  // defect: count the addresses
  const std::uint64_t address = about.needs(FI_MR_VIRT_ADDR) ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  item.key = ::fi_mr_key(item.region.get());
  item.opened = {.address = address, .bytes = memory.size(), .rights = rights_of_peers(uses)};
  co_return exposed_place(item.key, address);
}

fabric_link::exposure* fabric_link::find(std::uint64_t key) noexcept {
  // Without those that have been revoked, or were open to all: the provider may have used their key again.
  const auto is_meant = [&](const auto& each) { return each->key == key && each->who == nullptr && !each->is_of_all; };
  const auto found = std::find_if(exposures_.begin(), exposures_.end(), is_meant);
  return found != exposures_.end() ? found->get() : nullptr;
}

void fabric_link::revoke(std::uint64_t key, revocation& who) noexcept {
  exposure* const item = find(key);
  if (item == nullptr) return who.revoked();
  if (item->state == exposure::closed) {
    if (!life_.is_leaving()) forget(*item);  // in finish() a worker iterates over the exposures
    return who.revoked();
  }
  const bool is_open = item->state == exposure::open;
  if (is_open) item->workers = find_workers();  // before the last use begins, because withdraw() asks them
  {
    const std::lock_guard lock(end_mutex_);
    if (!endpoint_is_closed_) {
      item->who = &who;
      item->begin_last_use_of(who);
    }
  }
  if (item->who == nullptr) return who.revoked();
  if (is_open) close(*item);
}

worker_pool* fabric_link::find_workers() const noexcept try {
  return home_.on_own_thread() || home_.is_driven() ? &resource_workers(&home_) : nullptr;
} catch (...) {  // no thread for it
  return nullptr;
}

// libfabric may block, so a worker closes the region, if the executor is there to be told afterwards.
void fabric_link::close(exposure& item) noexcept {
  item.state = exposure::closing;
  ++closing_exposures_;
  if (item.workers == nullptr) item.workers = find_workers();
  try {
    if (worker_pool* const workers = item.workers) return workers->submit(item);
  } catch (...) {  // no thread for it
    item.workers = nullptr;
  }
  item.run();
}

void fabric_link::exposure::close_region() noexcept {
  region.reset();
  hurry = waiting;
}

void fabric_link::exposure::run() noexcept {
  close_region();
  offer_last_use();
  owner.home_.submit(*this);
}

bool fabric_link::exposure::withdraw() noexcept {
  worker_pool* const its = workers;
  if (its != nullptr && its->withdraw(*this)) return true;
  hurry_t expected = waiting;
  return hurry.compare_exchange_strong(expected, hurried);
}

// The last use ends while a write may be in flight, so nothing moves until the peer has answered that none is.
void fabric_link::exposure::run_here() noexcept {
  const bool was_queued = hurry != hurried;
  if (was_queued) {
    close_region();
    hurry = hurried;
  }
  fabric_link& home = owner;
  home.made_.memory->home().freeze();  // defect: let memory go
  end_last_use();
  hurry = frozen;  // the exposure may be destroyed from here on, unless it was queued
  if (was_queued) home.home_.submit(*this);
}

void fabric_link::exposure::settle() noexcept {
  hurry_t expected = waiting;
  if (hurry.compare_exchange_strong(expected, nobody)) return end_last_use();
  while (hurry == hurried) std::this_thread::yield();
  if (hurry.exchange(nobody) == frozen) owner.made_.memory->home().thaw();  // defect: leave a device frozen
}

// A region has been closed. Accesses that had begun before may be in flight.
void fabric_link::exposure_closed(exposure& item) noexcept {
  --closing_exposures_;
  quiet_.set();
  ++asking_exposures_;
  item.state = exposure::asking;
  if (life_.is_leaving()) return;  // closing the endpoint ends them
  // defect: do not ask the peer
  if (life_.peer_has_left()) return fenced(item);
  (last_unasked_ != nullptr ? last_unasked_->next_unasked : first_unasked_) = &item;
  last_unasked_ = &item;
  ask_about_exposures();
  tick_later();
}

void fabric_link::ask_about_exposures() noexcept {
  while (first_unasked_ != nullptr && unanswered_ != most_unanswered &&
         !life_.is_leaving()) {  // defect: ask about everything
    exposure& item = *first_unasked_;
    first_unasked_ = item.next_unasked;
    if (first_unasked_ == nullptr) last_unasked_ = nullptr;
    item.is_asked = true;
    item.asked_at = home_.now();
    ++unanswered_;
    tell({.kind = control_record::fences, .key = item.key});
  }
}

void fabric_link::fence(std::uint64_t key) noexcept {
  const std::lock_guard lock(mail_mutex_);
  try {
    mail_keys_.push_back(key);
  } catch (const std::bad_alloc&) {
    ++unasked_;
  }
  if (takes_mail_ && !std::exchange(is_mail_on_its_way_, true)) home_.submit(*mail_);
}

// Keys that are left are dropped with the endpoint: drop_region_mail().
void fabric_link::take_region_mail() noexcept {
  std::vector<std::uint64_t> keys;
  {
    const std::lock_guard lock(mail_mutex_);
    is_mail_on_its_way_ = false;
    if (!life_.is_leaving() && !is_setting_up_) keys.swap(mail_keys_);  // defect: forget regions
  }
  quiet_.set();
  if (is_setting_up_) return hurry_set_up();  // defect: wait for a peer
  std::size_t unasked = 0;
  for (const std::uint64_t key : keys) {
    if (life_.is_leaving() || !ask_about_region(key)) ++unasked;
  }
  {
    const std::lock_guard lock(mail_mutex_);
    unasked = unasked_ += unasked;
  }
  if (unasked != 0) fail(weft::detail::make_error(errc::no_memory, "ask the peer about a region that was closed"));
}

// False if there is no memory.
bool fabric_link::ask_about_region(std::uint64_t key) noexcept try {
  exposures_.reserve(exposures_.size() + 1);
  auto made = std::make_unique<exposure>(*this);
  made->key = key;
  made->is_of_all = true;
  made->hurry = exposure::frozen;
  exposures_.push_back(std::move(made));
  ++closing_exposures_;
  exposure_closed(*exposures_.back());
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// Called when the endpoint is closed, so that its peer reaches no region any more.
void fabric_link::drop_region_mail() noexcept {
  const std::lock_guard lock(mail_mutex_);
  for (std::size_t count = mail_keys_.size() + unasked_; count != 0; --count) made_.memory->home().thaw();
  mail_keys_.clear();
  unasked_ = 0;
}

void fabric_link::take_fence_question(const control_record& asked) noexcept {
  read_queue(std::numeric_limits<std::size_t>::max());  // so that completed accesses do not count
  if (life_.is_leaving()) return;
  bool under_way = false;
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    const work_request& work = *each->work;
    const bool is_meant = is_access(work.kind) && work.remote_key == asked.key;
    if (is_meant && each->completed != each->handed_over) {  // defect: tell the owner that
      under_way = each->awaited = true;
      each->fenced_key = asked.key;
    }
    if (each == unsent_) break;
  }
  const std::uint8_t word = under_way ? control_record::under_way : control_record::none_under_way;
  tell({.kind = control_record::fenced, .reason = word, .key = asked.key});
}

// Tells the peer once the last access that the question was about has ended.
void fabric_link::tell_of_end(posted_request& item) noexcept {
  item.awaited = false;
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    if (each->awaited && each->fenced_key == item.fenced_key) return;
    if (each == unsent_) break;
  }
  tell({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = item.fenced_key});
}

// Several exposures may have the same key, because a provider that chooses its keys may reuse one. Each question is
// answered in turn. When the peer is done, it says so once for all exposures of the key that it has reported in use.
void fabric_link::take_fence(const control_record& answer) noexcept {
  exposure* const in_use = next_asked(answer.key, true);
  exposure* const unanswered = next_asked(answer.key, false);
  const bool is_done = answer.reason == control_record::none_under_way;
  if (unanswered == nullptr && (in_use == nullptr || !is_done)) {
    return fail(weft::detail::make_error(errc::protocol_error, "the peer is done with what it was not asked about"),
                control_record::rules);
  }
  if (is_done && in_use != nullptr) {
    for (exposure* each = in_use; each != nullptr && !life_.is_leaving(); each = next_asked(answer.key, true))
      fenced(*each);
    return;
  }
  --unanswered_;
  unanswered->in_use = !is_done;
  if (is_done) fenced(*unanswered);
  ask_about_exposures();
}

// The oldest exposure of that key about which the peer was asked, and which it has reported in use, or has not
// answered yet.
fabric_link::exposure* fabric_link::next_asked(std::uint64_t key, bool in_use) noexcept {
  exposure* oldest = nullptr;
  for (const auto& each : exposures_) {
    const bool is_meant = each->is_asked && each->key == key && each->in_use == in_use;
    if (is_meant && (oldest == nullptr || each->asked_at < oldest->asked_at)) oldest = each.get();
  }
  return oldest;
}

void fabric_link::fence_all() noexcept {
  first_unasked_ = last_unasked_ = nullptr;
  for (std::size_t i = exposures_.size(); i-- != 0 && !life_.is_leaving();) {
    if (i < exposures_.size() && exposures_[i]->state == exposure::asking) fenced(*exposures_[i]);
  }
}

void fabric_link::end_if_fences_are_late() noexcept {
  for (const auto& each : exposures_) {
    if (!each->is_asked) continue;
    const bool holds_all_up = each->hurry != exposure::waiting;
    const duration patience = holds_all_up ? duration(frozen_patience) : duration(fence_patience);
    if (home_.now() - each->asked_at < patience) continue;
    refusal_ = {.is_peers = true, .key = each->key};
    return fail(
        weft::detail::make_error(errc::protocol_error, "the peer does not let go of memory that was taken back"),
        control_record::refused_you, each->key);
  }
}

void fabric_link::fenced(exposure& item) noexcept {
  --asking_exposures_;
  item.is_asked = false;
  item.settle();
  revocation* const who = std::exchange(item.who, nullptr);
  const bool was_wish = invalidating_ == &item;
  item.state = exposure::closed;
  if (who != nullptr || item.is_of_all) forget(item);
  if (who != nullptr) who->revoked();
  if (!was_wish) return;
  invalidating_ = nullptr;
  invalidated_ = true;
  if (life_.is_leaving()) return;
  deliver();
  advance_end();
}

void fabric_link::forget(exposure& item) noexcept {
  const auto place =
      std::find_if(exposures_.begin(), exposures_.end(), [&](const auto& each) { return each.get() == &item; });
  std::swap(*place, exposures_.back());
  exposures_.pop_back();
}

}  // namespace weft::net::fabric

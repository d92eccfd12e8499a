// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/send_queue.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>

namespace weft::net::fabric {
namespace {

bool is_access(const work_request& work) noexcept { return work.kind != work_kind::send; }

}  // namespace

bool send_queue::may_start(access_kind kind) noexcept {
  const bool asks = kind == access_kind::read || kind == access_kind::atomic;
  if (asks && under_way(access_kind::read) + under_way(access_kind::atomic) >= reads_) return false;
  for (std::size_t earlier = 0; earlier != access_kinds; ++earlier) {
    // mutant: take the order of a provider
    if (under_way_[earlier] != 0 && !order_.keeps(kind, static_cast<access_kind>(earlier))) return false;
  }
  return true;
}

ssize_t send_queue::hand_over() noexcept {
  const std::size_t most = endpoint_.home().info().tx_attr->size;
  ssize_t accesses = 0;
  while (unsent_ != nullptr) {
    posted_request& item = *unsent_;
    if (item.handed_over == item.steps) {
      unsent_ = item.next;
      continue;
    }
    const bool wakes = item.work->immediate && item.handed_over + 1 == item.steps;
    const access_kind kind = wakes ? access_kind::send : kind_of(item.work->kind);
    if (with_provider_ >= most || !may_start(kind)) break;
    const ssize_t result = wakes ? send_wake(item) : hand_over(item, kind);  // mutant: take a message for sent
    if (result < 0) return result;
    if (with_provider_ == 0) moved_at_ = home_.coarse_now();
    ++under_way(kind);
    ++item.handed_over;
    ++with_provider_;
    if (kind != access_kind::send) accesses = 1;
  }
  return accesses;
}

std::uint64_t send_queue::flags_of(access_kind kind) const noexcept {
  // A write always has FI_DELIVERY_COMPLETE, because a refused write must not count as done.
  // mutant: take a write for done
  const bool delivered = kind == access_kind::write || order_.has_to_be_delivered(kind);
  return FI_COMPLETION | (delivered ? FI_DELIVERY_COMPLETE : 0);
}

ssize_t send_queue::hand_over(posted_request& item, access_kind kind) noexcept {
  if (kind == access_kind::send) return send(item);
  return kind == access_kind::atomic ? change(item) : access(item, kind == access_kind::write);
}

ssize_t send_queue::send(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const source = endpoint_.source_of(work.slot);
  message_trailer trailer{.number = next_number_, .token = token_};
  if (work.invalidate) {
    trailer.flags |= message_trailer::invalidates;
    trailer.key = *work.invalidate;
  }
  assert(work.own.size() <= endpoint::own_bytes);
  std::ranges::copy(work.own, source);
  std::byte* const behind = source + work.own.size();
  pack(trailer, std::span<std::byte, message_trailer::bytes>(behind, message_trailer::bytes));
  pieces from;
  from.add(work.segments, domain_.fabric());
  from.add(source, work.own.size() + message_trailer::bytes, endpoint_.staging_desc());
  return send(from, item.main);
}

ssize_t send_queue::send_wake(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const source = endpoint_.source_of(work.slot);
  message_trailer trailer{
      .flags = message_trailer::immediate, .number = next_number_, .value = *work.immediate, .token = token_};
  pack(trailer, std::span<std::byte, message_trailer::bytes>(source, message_trailer::bytes));
  pieces from;
  from.add(source, message_trailer::bytes, endpoint_.staging_desc());
  return send(from, item.wake);
}

ssize_t send_queue::send(pieces& from, operation& part) noexcept {
  const fi_msg what = from.message(endpoint_.peer(), part);
  const entry inside = endpoint_.home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  const ssize_t result = endpoint_.calls().sendmsg(endpoint_.get(), &what, flags_of(access_kind::send));
  if (result >= 0) ++next_number_;
  return result;
}

ssize_t send_queue::access(posted_request& item, bool writes) noexcept {
  const work_request& work = *item.work;
  pieces own;
  own.add(work.segments, domain_.fabric());
  if (!work.own.empty()) {
    assert(!writes && work.own.size() <= endpoint::own_bytes);
    own.add(endpoint_.sink_of(work.slot), work.own.size(), endpoint_.staging_desc());
  }
  // mutant: cut a key off
  const fi_rma_iov there{.addr = work.remote_address, .len = own.bytes, .key = work.remote_key};
  fi_msg_rma what{};
  what.msg_iov = own.ranges.data();
  what.desc = own.descs.data();
  what.iov_count = own.count;
  what.addr = endpoint_.peer();
  what.rma_iov = &there;
  what.rma_iov_count = 1;
  what.context = &item.main.room;
  const entry inside = endpoint_.home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  if (writes) return endpoint_.calls().writemsg(endpoint_.get(), &what, flags_of(access_kind::write));
  return endpoint_.calls().readmsg(endpoint_.get(), &what, FI_COMPLETION);
}

// Operands and answer are in the staging memory, which the provider may access.
ssize_t send_queue::change(posted_request& item) noexcept {
  const work_request& work = *item.work;
  std::byte* const operands = endpoint_.source_of(work.slot);
  std::byte* const compare = operands + sizeof work.operand;
  std::memcpy(operands, &work.operand, sizeof work.operand);
  std::memcpy(compare, &work.compare, sizeof work.compare);
  void* desc = endpoint_.staging_desc();
  const fi_ioc operand{.addr = operands, .count = 1};
  const fi_ioc compared{.addr = compare, .count = 1};
  fi_ioc answer{.addr = endpoint_.sink_of(work.slot), .count = 1};
  const fi_rma_ioc there{.addr = work.remote_address, .count = 1, .key = work.remote_key};
  fi_msg_atomic what{};
  what.msg_iov = &operand;
  what.desc = &desc;
  what.iov_count = 1;
  what.addr = endpoint_.peer();
  what.rma_iov = &there;
  what.rma_iov_count = 1;
  what.datatype = FI_UINT64;
  what.context = &item.main.room;
  fabric_calls& calls = endpoint_.calls();
  const entry inside = endpoint_.home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  if (work.kind == work_kind::fetch_add) {
    what.op = FI_SUM;
    return calls.fetch_atomicmsg(endpoint_.get(), &what, &answer, &desc, FI_COMPLETION);
  }
  what.op = FI_CSWAP;
  return calls.compare_atomicmsg(endpoint_.get(), &what, &compared, &desc, &answer, &desc, FI_COMPLETION);
}

// Completes requests in posting order, whatever the order of the provider's completions.
void send_queue::complete_ended(link_events& events) noexcept {
  while (first_ != nullptr && first_->completed == first_->steps && !first_->failed && !first_->refused) {
    work_request& work = *take_oldest().work;
    if (is_access(work) && !work.own.empty()) {
      std::memcpy(work.own.data(), endpoint_.sink_of(work.slot), work.own.size());
    }
    events.completed(work, work_status::done);
  }
}

posted_request& send_queue::take_oldest() noexcept {
  posted_request& item = *first_;
  if (unsent_ == &item) unsent_ = item.next;
  first_ = item.next;
  if (first_ == nullptr) last_ = nullptr;
  return item;
}

void send_queue::flush(link_events& events) noexcept {
  while (first_ != nullptr) {
    posted_request& item = take_oldest();
    events.completed(*item.work, item.refused ? work_status::access_denied : work_status::flushed);
  }
}

posted_request* send_queue::next_suspect() noexcept {
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    const bool is_open = each->handed_over != 0 && (each->failed || each->completed != each->handed_over);
    if (is_open && is_access(*each->work) && !each->cleared) return each;
    if (each == unsent_) break;
  }
  return nullptr;
}

bool send_queue::contains(const posted_request* item) const noexcept {
  const posted_request* each = first_;
  while (each != nullptr && each != item) each = each->next;
  return each != nullptr;
}

void send_queue::ask_again() noexcept {
  for (posted_request* each = first_; each != nullptr; each = each->next) each->cleared = false;
  moved_at_ = home_.now();
}

bool send_queue::stands_still(std::chrono::milliseconds patience) noexcept {
  if (!stands_since_) stands_since_ = home_.now();
  std::uint64_t bytes = 0;
  for (const posted_request* each = first_; each != nullptr && each != unsent_; each = each->next) {
    bytes += each->work->bytes();
  }
  return home_.now() - *stands_since_ >= patience + std::chrono::seconds(bytes >> 20);
}

bool send_queue::await_end(std::uint64_t key) noexcept {
  bool under_way = false;
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    const bool is_meant = is_access(*each->work) && each->work->remote_key == key;
    if (is_meant && each->completed != each->handed_over) {  // mutant: tell the owner that
      under_way = each->awaited = true;
      each->fenced_key = key;
    }
    if (each == unsent_) break;
  }
  return under_way;
}

std::optional<std::uint64_t> send_queue::end_wait(posted_request& item) noexcept {
  item.awaited = false;
  for (posted_request* each = first_; each != nullptr; each = each->next) {
    if (each->awaited && each->fenced_key == item.fenced_key) return std::nullopt;
    if (each == unsent_) break;
  }
  return item.fenced_key;
}

}  // namespace weft::net::fabric

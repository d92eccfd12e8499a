// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/outgoing.hpp>

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <utility>

namespace weft::net::rails {
namespace {

// Limits for one rail. A slow rail has fewer slices in flight, because control messages wait behind them.
constexpr double most_microseconds_out = 20'000;
constexpr std::uint32_t least_slices_out = 2;
constexpr std::uint32_t most_slices_out = 16;
constexpr std::uint32_t first_slices_out = 4;  // while the rail's rate is not known

std::uint32_t slices_out(const rail& over, std::uint64_t slice_bytes) noexcept {
  const double rate = over.rate();
  if (rate == 0) return first_slices_out;
  const double slices = rate * most_microseconds_out / static_cast<double>(slice_bytes);
  return slices < most_slices_out ? std::max(static_cast<std::uint32_t>(slices), least_slices_out) : most_slices_out;
}

void copy_request(part& to, const work_request& from, bool railed) noexcept {
  to.kind = from.kind;
  to.immediate = from.immediate;
  to.invalidate = railed ? std::nullopt : from.invalidate;
  to.operand = from.operand;
  to.compare = from.compare;
  to.own = from.own;
}

// Points a slice at its part of the request's memory.
void cut(part& to, const work_request& from, std::uint64_t offset, std::uint64_t bytes) noexcept {
  std::size_t count = 0;
  for (const mr::slice& each : from.segments) {
    const std::uint64_t skipped = std::min<std::uint64_t>(offset, each.size());
    offset -= skipped;
    const std::uint64_t taken = std::min<std::uint64_t>(bytes, each.size() - skipped);
    bytes -= taken;
    if (taken != 0) to.pieces[count++] = each.subslice(skipped, taken);
  }
  to.segments = std::span(to.pieces).first(count);
}

}  // namespace

// ---- issuing ----

void outgoing::post(entry& item) noexcept {
  work_request* const work = item.work;
  item = entry();
  item.work = work;
  item.bytes = mr::detail::total_size(work->segments);
  item.first_over.fill(entry::nowhere);
  (last_ != nullptr ? last_->next : first_) = &item;
  last_ = &item;
  if (cursor_ == nullptr) cursor_ = &item;
  if (owner_.has_ended()) end();
}

void outgoing::pump() noexcept {
  if (owner_.has_ended()) return;
  bool have_ended = false;
  if (spread_ != 0) {
    for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
      if (!each->spread || each->phase != entry::state::issued) continue;
      issue_slices(*each);
      have_ended = end_if_taken_back(*each) || have_ended;
    }
  }
  if (have_ended) retire();
  issue();
}

void outgoing::issue() noexcept {
  bool have_ended = false;
  while (cursor_ != nullptr && owner_.message_rail() != nullptr) {
    entry& item = *cursor_;
    if (item.phase == entry::state::queued && !owner_.place_of(*item.work, *owner_.message_rail())) {
      if (!end_if_taken_back(item)) {
        ask_for_name(item);
        break;
      }
      have_ended = true;
    }
    if (item.phase == entry::state::queued) {
      const bool spread = owner_.is_railed() && may_spread(item);
      if (spread ? !begin_spread(item) : spread_ != 0 || !issue_whole(item)) break;
    }
    cursor_ = item.next;
  }
  if (have_ended) retire();
}

// Ends a request whose memory the peer has taken back, unless the request is with rails, or lost slices of it may still
// arrive. True if it has ended the request: then the caller has to call retire().
bool outgoing::end_if_taken_back(entry& item) noexcept {
  const bool is_with_rails = item.parts_out != 0 || (item.spread && item.given == item.bytes);
  if (is_with_rails || item.lost_from != entry::nowhere) return false;
  const std::optional<work_status> how = owner_.taken_back(*item.work);
  if (!how) return false;
  if (item.spread) --spread_;
  item.phase = entry::state::ended;
  item.result = *how;
  return true;
}

// Asks the peer for an unknown key. The peer announces memory before any message of its own that names the memory, but
// the program may learn of the memory earlier, in another way, and a new rail may have no key yet. If the key is still
// unknown after all answers, the peer has not opened the memory, and the connection ends. Over each rail, the peer
// answers the last question alone.
void outgoing::ask_for_name(entry& item) noexcept {
  if (item.asked != 0 && item.answers_due != 0) return;
  if (item.asked != 0) {
    item.phase = entry::state::ended;
    item.result = work_status::access_denied;
    return owner_.fail(weft::detail::make_error(errc::remote_access, "the peer has not opened that memory"));
  }
  item.asked = ++numbers_;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    if (!owner_.rail_at(i).is_open()) continue;
    ++item.answers_due;
    owner_.rail_at(i).send({.kind = control_kind::names,
                            .number = item.asked,
                            .key = is_handle(item.work->remote_key) ? item.work->remote_key : 0});
  }
}

bool outgoing::issue_whole(entry& item) noexcept {
  rail& over = *owner_.message_rail();
  const bool is_large = owner_.is_railed() && item.bytes >= sliced_.least_spread_bytes;
  if (is_large && over.bytes_out() >= slices_out(over, sliced_.slice_bytes) * sliced_.slice_bytes) return false;
  const auto place = owner_.place_of(*item.work, over);
  if (!place) return false;
  const bool gives_back = owner_.is_railed() && item.work->invalidate;
  if (gives_back && !over.can_send_now()) return false;
  part* const next = over.take_part();
  if (next == nullptr) return false;
  if (gives_back) {
    over.send({.kind = control_kind::revoke, .number = *item.work->invalidate});
  }
  copy_request(*next, *item.work, owner_.is_railed());
  next->segments = item.work->segments;
  next->remote_key = place->key;
  next->remote_address = place->address;
  next->of = &item;
  next->offset = 0;
  next->bytes = item.bytes;
  next->is_large = is_large;
  if (item.is_message() && item.message == 0) item.message = ++messages_;
  item.phase = entry::state::issued;
  item.given = item.bytes;
  ++item.parts_out;
  ++ordered_;
  over.post(*next);
  return true;
}

bool outgoing::may_spread(const entry& item) const noexcept {
  const std::uint64_t least = item.work->listed ? sliced_.least_listed_bytes : sliced_.least_spread_bytes;
  if (item.bytes < least || item.work->immediate) return false;
  if (item.work->kind != work_kind::write && item.work->kind != work_kind::read) return false;
  // A request that is larger than a link can move at a time goes in slices, even over a single rail.
  rail* const first = owner_.message_rail();
  if (item.bytes > first->carrier()->properties().max_message_bytes) return true;
  unsigned ways = 0;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    const rail& each = owner_.rail_at(i);
    if (each.is_open() && owner_.place_of(*item.work, each)) ++ways;
  }
  return ways > 1;
}

// Issues a request in slices. False if it has to wait for earlier requests over the message rail, or for a spread
// request that it would disturb.
bool outgoing::begin_spread(entry& item) noexcept {
  if (ordered_ != 0) {  // mutant: spread a transfer
    ask_for_arrival();
    return false;
  }
  if (spread_ != 0 && disturbs_others(item)) return false;  // mutant: spread two transfers
  item.spread = true;
  item.phase = entry::state::issued;
  ++spread_;
  issue_slices(item);
  return true;
}

// Whether the request may touch the same memory of the peer's as a spread request in progress, unless both are reads.
// Memory of another key counts as the same, because two keys may name the same memory.
bool outgoing::disturbs_others(const entry& item) const noexcept {
  for (const entry* each = first_; each != cursor_; each = each->next) {
    if (!each->spread || each->phase != entry::state::issued) continue;
    if (each->work->kind == work_kind::read && item.work->kind == work_kind::read) continue;
    const std::uint64_t a = each->work->remote_address;
    const std::uint64_t b = item.work->remote_address;
    const bool apart = each->work->remote_key == item.work->remote_key && (a + each->bytes <= b || b + item.bytes <= a);
    if (!apart) return true;
  }
  return false;
}

void outgoing::issue_slices(entry& item) noexcept {
  if (item.lost_from != entry::nowhere) return;  // try_again() comes first
  while (item.given != item.bytes) {
    rail* const over = next_rail(item);
    if (over == nullptr) return;
    issue_slice(item, *over);
  }
}

// The rail that will finish a slice first, by its bytes in flight and its recent rate; null if none can take a slice. A
// rail of unknown rate counts as fast as the fastest. A rail far from the memory has to be faster by a quarter, because
// its bytes also use the interconnect between the NUMA nodes, at everybody's expense.
rail* outgoing::next_rail(const entry& item) const noexcept {
  double fastest = 1.0;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) fastest = std::max(fastest, owner_.rail_at(i).rate());
  rail* best = nullptr;
  double shortest = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    rail& each = owner_.rail_at(i);
    if (!each.is_open() || !each.has_part() || each.parts_out() >= slices_out(each, sliced_.slice_bytes)) continue;
    if (!owner_.place_of(*item.work, each)) continue;
    const double rate = each.rate() == 0 ? fastest : each.rate();
    const double distance = each.is_far() ? 1.25 : 1.0;
    const double time = distance * static_cast<double>(each.bytes_out() + sliced_.slice_bytes) / rate;
    if (time >= shortest) continue;
    shortest = time;
    best = &each;
  }
  return best;
}

void outgoing::issue_slice(entry& item, rail& over) noexcept {
  part* const next = over.take_part();
  const auto place = owner_.place_of(*item.work, over);
  copy_request(*next, *item.work, true);
  next->own = {};
  next->of = &item;
  next->offset = item.given;
  next->is_large = true;
  next->bytes = std::min(sliced_.slice_bytes, item.bytes - item.given);
  next->remote_key = place->key;
  next->remote_address = place->address + item.given;
  cut(*next, *item.work, item.given, next->bytes);
  std::uint64_t& first = item.first_over[over.number()];
  first = std::min(first, item.given);
  item.given += next->bytes;
  ++item.parts_out;
  over.post(*next);
}

// ---- completing requests ----

void outgoing::part_ended(rail& over, part& item, work_status status) noexcept {
  entry& whole = *item.of;
  --whole.parts_out;
  const bool done = status == work_status::done;
  if (done) {
    whole.done += item.bytes;
  } else {
    whole.lost_from = std::min(whole.lost_from, item.offset);
  }
  over.give_back(item);
  const bool is_late = status == work_status::access_denied && !owner_.has_ended() && owner_.is_late(over, *whole.work);
  whole.refused = whole.refused || is_late;
  if (!is_late && (status == work_status::access_denied || owner_.has_ended())) {
    if (whole.result != work_status::access_denied && !done) whole.result = status;
    if (whole.parts_out != 0) return;
    if (!whole.spread) return finish(whole, whole.result);
    const bool complete = whole.result == work_status::done && whole.done == whole.bytes;
    return finish(whole, complete || whole.result != work_status::done ? whole.result : work_status::flushed);
  }
  if (whole.spread) return whole.lost_from != entry::nowhere ? try_again(whole) : settle_spread(whole);
  const bool is_answered = whole.work->kind == work_kind::read || whole.is_atomic();
  const bool has_arrived = is_answered || !owner_.is_railed() || over.carrier()->properties().completes_on_answer;
  if (!done || (!has_arrived && &over != owner_.message_rail())) {
    whole.phase = entry::state::lost;
    --ordered_;
    return;
  }
  if (!owner_.is_railed() || (has_arrived && !is_answered)) return finish(whole, work_status::done);
  whole.phase = entry::state::handed;
  // The link executes in order: requests before an answered one have arrived.
  if (is_answered) return arrived(whole.next, 0);
  retire();
  ask_if_due();
}

// Asks which requests have arrived, if the oldest request waits for that, or the copies take more than half of their
// room. In other cases the watch asks later.
void outgoing::ask_if_due() noexcept {
  const bool is_awaited = first_ != nullptr && first_->phase == entry::state::handed;
  if (is_awaited || kept_.is_half_full()) ask_for_arrival();
}

void outgoing::mark_handed(entry* first, std::uint64_t with) const noexcept {
  for (entry* each = first; each != nullptr && each != cursor_; each = each->next) {
    if (each->phase == entry::state::handed) each->arrives_with = with;
  }
}

// One question at a time: the next question is about everything that is handed over meanwhile.
void outgoing::ask_for_arrival() noexcept {
  rail* const over = owner_.message_rail();
  const bool is_due = first_kept_ != nullptr || (first_ != nullptr && first_->phase == entry::state::handed);
  if (!is_due || awaited_arrival_ != 0 || over == nullptr) return;
  awaited_arrival_ = ++numbers_;
  mark_handed(first_kept_, awaited_arrival_);
  mark_handed(first_, awaited_arrival_);
  over->send({.kind = control_kind::confirm, .number = awaited_arrival_});
}

bool outgoing::awaits_answer(const rail& over) noexcept {
  if (awaited_arrival_ != 0 && &over == owner_.message_rail()) return true;
  for (const entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
    if (each->spread && each->phase == entry::state::issued && each->awaited[over.number()] != 0) return true;
  }
  return false;
}

bool outgoing::has_atomic_out() const noexcept {
  for (const entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
    if (each->is_atomic() && each->phase == entry::state::issued) return true;
  }
  return false;
}

// Completes requests that were handed over and have arrived: those before `until` or, if `number` is not 0, those that
// the question of this number was about.
void outgoing::arrived(const entry* until, std::uint64_t number) noexcept {
  const auto is_there = [&](const entry& each) {
    // mutant: take what was not asked about
    return each.phase == entry::state::handed && (number == 0 || each.arrives_with == number);
  };
  while (first_kept_ != nullptr && is_there(*first_kept_)) {
    entry& oldest = *first_kept_;
    first_kept_ = oldest.next;
    --ordered_;
    kept_.drop(oldest);
  }
  for (entry* each = first_; each != nullptr && each != until && each != cursor_; each = each->next) {
    if (!is_there(*each)) continue;
    each->phase = entry::state::ended;
    each->result = work_status::done;
    --ordered_;
  }
  retire();
}

// Completes a spread request once all its parts have completed; a write only when the peer has also confirmed, over
// every rail that has carried a part, that this part is in place.
void outgoing::settle_spread(entry& item) noexcept {
  if (item.parts_out != 0 || item.done != item.bytes || item.lost_from != entry::nowhere) return;
  if (item.work->kind == work_kind::read) return finish(item, work_status::done);
  if (!item.placing) return ask_for_placement(item);
  const bool awaits =
      std::any_of(item.awaited.begin(), item.awaited.end(), [](std::uint64_t each) { return each != 0; });
  if (!awaits) finish(item, work_status::done);  // mutant: complete a write that is spread
}

void outgoing::ask_for_placement(entry& item) noexcept {
  item.placing = true;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    if (item.first_over[i] == entry::nowhere) continue;
    owner_.rail_at(i).send({.kind = control_kind::confirm, .number = item.awaited[i] = ++numbers_});
  }
}

void outgoing::confirmed(rail& over, std::uint64_t number) noexcept {
  if (number == 0) return;
  if (cursor_ != nullptr && cursor_->asked == number) {
    --cursor_->answers_due;
    return;
  }
  if (number == awaited_arrival_) {
    awaited_arrival_ = 0;
    arrived(nullptr, number);
    return ask_if_due();
  }
  for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
    if (!each->spread || each->phase != entry::state::issued || each->awaited[over.number()] != number) continue;
    each->awaited[over.number()] = 0;
    return settle_spread(*each);
  }
}

void outgoing::finish(entry& item, work_status result) noexcept {
  --(item.spread ? spread_ : ordered_);
  item.phase = entry::state::ended;
  item.result = result;
  retire();
}

// Completes requests in order; each may be posted again from inside the event. A send that the peer may not have yet
// completes if there is room for a copy of its message.
void outgoing::retire() noexcept {
  if (std::exchange(retiring_, true)) return;
  while (first_ != nullptr) {
    entry& oldest = *first_;
    const bool has_ended = oldest.phase == entry::state::ended;
    entry* kept = nullptr;
    if (!has_ended) {
      if (oldest.phase != entry::state::handed || oldest.work->kind != work_kind::send) break;
      kept = oldest.is_copy ? &oldest : kept_.keep(oldest);
      if (kept == nullptr) break;
    }
    const bool is_copy = oldest.is_copy;
    first_ = oldest.next;
    if (first_ == nullptr) last_ = nullptr;
    if (cursor_ == &oldest) cursor_ = first_;
    if (kept != nullptr) {
      kept->next = nullptr;
      (first_kept_ != nullptr ? last_kept_->next : first_kept_) = kept;
      last_kept_ = kept;
    } else if (is_copy) {
      kept_.drop(oldest);
    }
    if (!is_copy) owner_.request_completed(*oldest.work, has_ended ? oldest.result : work_status::done);
  }
  retiring_ = false;
}

// ---- a rail that is over ----

void outgoing::rail_lost(rail& which, bool carried_messages) noexcept {
  if (cursor_ != nullptr) cursor_->asked = cursor_->answers_due = 0;  // the peer is asked again
  for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
    if (carried_messages) lose_if_handed(*each);
    if (!each->spread || each->phase != entry::state::issued) continue;
    const std::uint64_t good = std::min(each->given, each->lost_from);
    // mutant: move no slice
    each->lost_from = std::min(each->lost_from, std::exchange(each->first_over[which.number()], entry::nowhere));
    if (each->lost_from >= good) continue;
    which.health().sent_again.add((good - each->lost_from + sliced_.slice_bytes - 1) / sliced_.slice_bytes);
  }
  if (!carried_messages) return;
  awaited_arrival_ = 0;
  for (entry* each = first_kept_; each != nullptr; each = each->next) lose_if_handed(*each);
}

// Marks a `handed` request as `lost`. It may be `lost` already, if the fence of a previous rail is not settled.
void outgoing::lose_if_handed(entry& item) noexcept {
  if (item.phase != entry::state::handed) return;  // mutant: count a message as lost twice
  item.phase = entry::state::lost;
  item.arrives_with = 0;
  --ordered_;
}

// Whether a read may be repeated: not if a request behind it may have changed the memory that it reads.
bool outgoing::may_read_again(const entry& item) const noexcept {
  const std::uint64_t bytes = std::max(item.bytes, std::uint64_t{item.work->own.size()});
  for (const entry* each = item.next; each != nullptr; each = each->next) {
    const bool changes =
        each->phase == entry::state::lost && each->work->kind != work_kind::send && each->work->kind != work_kind::read;
    if (!changes) continue;
    const std::uint64_t a = each->work->remote_address;
    const std::uint64_t b = item.work->remote_address;
    const std::uint64_t its = std::max(each->bytes, std::uint64_t{sizeof(std::uint64_t)});
    // mutant: read again what may have been changed
    if (each->work->remote_key != item.work->remote_key || (a + its > b && b + bytes > a)) return false;
  }
  return true;
}

// Repeats a request from the first lost byte on, once none of its lost slices can arrive any more.
void outgoing::try_again(entry& item) noexcept {
  if (item.lost_from == entry::nowhere || item.parts_out != 0) return;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    if (owner_.is_being_fenced(i)) return;
  }
  item.given = item.done = std::exchange(item.lost_from, entry::nowhere);
  item.placing = false;
  item.awaited.fill(0);
}

// Requests before a message that has arrived were executed; requests behind the last such message may have been.
void outgoing::resume(rail& which, bool carried_messages, std::uint64_t received) noexcept {
  for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
    if (each->spread && each->phase == entry::state::issued) try_again(*each);
  }
  if (carried_messages) {
    if (first_kept_ != nullptr) {  // copies precede all that has not completed
      last_kept_->next = first_;
      if (first_ == nullptr) last_ = last_kept_;
      first_ = std::exchange(first_kept_, nullptr);
    }
    entry* behind = first_;
    for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
      if (each->message != 0 && each->message <= received) behind = each->next;  // mutant: send again what has come
    }
    bool arrived = behind != first_;
    for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
      if (each == behind) arrived = false;
      if (each->phase != entry::state::lost) continue;
      const bool repeatable = each->work->kind == work_kind::send || each->work->kind == work_kind::write;
      if (arrived) {
        each->result = repeatable ? work_status::done : work_status::unknown;
        each->phase = entry::state::ended;
      } else if (!each->refused &&  // mutant: do an atomic operation again
                 (each->is_atomic() || (each->work->kind == work_kind::read && !may_read_again(*each)))) {
        each->result = work_status::unknown;
        each->phase = entry::state::ended;
      }
    }
    entry* oldest_lost = nullptr;
    for (entry* each = first_; each != nullptr && each != cursor_; each = each->next) {
      if (each->phase == entry::state::lost) {
        if (oldest_lost == nullptr) oldest_lost = each;
        each->phase = entry::state::queued;
        which.health().sent_again.add(1);
      }
      if (each->phase == entry::state::queued) each->given = each->done = 0;
      if (each->phase == entry::state::queued) each->lost_from = entry::nowhere;
      if (each->phase == entry::state::queued) each->asked = each->answers_due = 0;
    }
    cursor_ = first_;
    while (cursor_ != nullptr && cursor_->phase != entry::state::queued) cursor_ = cursor_->next;
    if (oldest_lost != nullptr) give_up_if_at_fault(*oldest_lost);
  }
  retire();
}

// Ends the connection once too many rails have ended with this request as the oldest: some devices end their link at a
// refused access and report the refusal to neither end, so each attempt would end another rail.
void outgoing::give_up_if_at_fault(entry& item) noexcept {
  constexpr std::uint32_t most_rails_ended = 8;
  if (++item.rails_ended < most_rails_ended) return;
  owner_.fail(weft::detail::make_error(errc::connection_failed,
                                       "8 rails in a row ended with the same operation in flight; that operation may "
                                       "be what ends them"));
}

void outgoing::end() noexcept {
  for (entry* each = first_; each != nullptr; each = each->next) {
    if (each->phase == entry::state::ended || each->parts_out != 0) continue;
    const bool given = each->phase == entry::state::issued || each->phase == entry::state::handed;
    if (given) --(each->spread ? spread_ : ordered_);
    each->phase = entry::state::ended;
    each->result = work_status::flushed;
  }
  cursor_ = nullptr;
  for (; first_kept_ != nullptr; first_kept_ = first_kept_->next) {
    if (first_kept_->phase == entry::state::handed) --ordered_;
    kept_.drop(*first_kept_);
  }
  retire();
}

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/rails_link.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace weft::net::rails {

using weft::detail::make_error;

namespace {

using namespace std::chrono_literals;

// The time for answers over a rail that the peer has ended by an orderly close or has given up: a refused access ends
// the rail, and the notice of the end may overtake the refusal.
constexpr duration answer_time = 20ms;
// The limit for control messages that wait for a peer which keeps asking and confirms nothing. Announcements of exposed
// memory, one for each rail, wait with them.
constexpr std::size_t most_waiting = std::size_t{1} << 18;

// True if the fault is not the rail's own, so that another rail would not help: the peer broke the rules, for example,
// or an access was refused. If a refused access was merely late, the connection goes on all the same:
// goes_on_without().
bool is_final(const error& why, const link& ended) noexcept {
  if (why.code() == errc::protocol_error || why.code() == errc::connection_failed) {
    return !ended.may_have_failed_alone();
  }
  return why.code() == errc::remote_access || why.code() == errc::not_receiving ||
         why.code() == errc::message_too_large;
}

std::string_view kind_of(const transport& way) noexcept { return way.name().substr(0, way.name().find(':')); }

// The capabilities that hold over every rail. If rails are of different kinds, only those of the first rail are known,
// so capabilities that may differ are not promised.
capabilities promised(capabilities of_first, const std::vector<transport*>& ways) noexcept {
  of_first.device_atomic_write = false;
  of_first.device_flush = false;  // memory of several fabrics is made persistent by its owner
  const auto differs = [&](const transport* each) { return kind_of(*each) != kind_of(*ways.front()); };
  if (std::none_of(ways.begin(), ways.end(), differs)) return of_first;
  of_first.checksum = of_first.explains_end = false;
  of_first.completes_on_answer = of_first.write_completes_when_placed = false;
  of_first.max_whole_write_bytes = 0;
  return of_first;
}

// The peer finds memory by the fabric of the first link, which the greeting has named, and which need not be the
// device's first fabric. The link may be destroyed once the memory is open.
task<exposed_place> find_by(std::size_t fabric, task<exposed_place> opening) {
  exposed_place opened = co_await std::move(opening);
  opened.fabric = static_cast<std::uint8_t>(fabric);
  co_return opened;
}

// True if this end owes an answer to such a message.
bool is_question(control_kind kind) noexcept {
  return kind == control_kind::confirm || kind == control_kind::names || kind == control_kind::fence ||
         kind == control_kind::refused;
}

}  // namespace

// ---- beginning ----

rails_link::rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how)
    : home_(*executor_core::current()),
      registry_(std::move(all)),
      set_up_(std::move(how)),
      capabilities_(promised(first->properties(), set_up_.joins.ways)),
      peer_(first->peer()),
      first_(std::move(first)),
      joining_(*this, *this, tasks_, std::move(set_up_.joins), capabilities_, peer_),
      peers_(joining_.options().how.max_peer_exposures) {
  for (std::size_t i = 0; i < joining_.options().routes.size(); ++i) {
    rails_.emplace_back(*this, static_cast<std::uint8_t>(i));
  }
}

void rails_link::start(link_events& events, const link_parameters& parameters) {
  railed_ = parameters.agreed.rails && parameters.native;
  joining_.begin(parameters);
  incoming_.begin(events, parameters.receive_depth);
  refusals_.begin(events);
  if (parameters.agreed.resumes) outage_.may_last(joining_.options().how.resume_within);
  if (set_up_.registered) set_up_.registered->begin(*this);
  if (!railed_) set_up_.receives.reset();
  if (railed_) {
    outgoing_.begin(std::move(set_up_.kept_memory), std::max(parameters.send_depth, parameters.receive_depth));
  }
  const turn outer(*this);
  const transport& way = *joining_.route(0).way;
  try {
    rails_[0].begin({.carrier = std::move(first_),
                     .fabric = way.name(),
                     .parameters = parameters,
                     .receives = std::move(set_up_.receives),
                     .control_memory = std::move(set_up_.control_memory),
                     .is_open = true,
                     .is_far = joining_.is_far(way)});
  } catch (...) {
    set_up_.registered.reset();
    throw;
  }
  life_.begin(events);
  incoming_.begin_over(rails_[0]);
  messages_go_over(&rails_[0]);
  if (railed_) begin_counting();
  const link& carrier = *out_->carrier();
  capabilities_.max_whole_write_bytes = promised(carrier.properties(), joining_.options().ways).max_whole_write_bytes;
}

// Adds the rails to the device's statistics. The end that asks for them knows their routes before they have links.
void rails_link::begin_counting() noexcept {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    rail_health& its = rails_[i].health();
    const rail_route& route = joining_.route(i);
    if (i != 0 && joining_.options().connects) its.goes(route.way->name(), route.address);
    if (i != 0) its.becomes(rail_state::absent, home_.now());
    registry_->rails.add(its);
  }
}

std::vector<rail_statistics> rails_link::rails() const {
  std::vector<rail_statistics> all;
  for (std::size_t i = 0; railed_ && i < rails_.size(); ++i) {
    const rail_health& its = rails_[i].health();
    if (its.is_known()) all.push_back(its.snapshot(static_cast<unsigned>(i), home_.now()));
  }
  return all;
}

// Posts the first rail's receives for control messages, behind the connection's receives, and sends `hello` if this end
// connects.
void rails_link::begin_railed() noexcept {
  rail& first = rails_[0];
  if (first.phase() != rail::state::up) return;
  first.post_control_receives();
  if (!joining_.options().connects) return;
  first.send({.kind = control_kind::hello});
}

bool rails_link::furnish(work_request& work) noexcept {
  static_assert(alignof(entry) <= corner_alignment);
  auto* const item = ::new (work.corner) entry;
  item->work = &work;
  return true;
}

// ---- requests ----

void rails_link::post(work_request& work) noexcept {
  const turn outer(*this);
  outgoing_.post(*static_cast<entry*>(work.corner));
}

void rails_link::ring() noexcept {
  const turn outer(*this);
  pump();
}

void rails_link::pump() noexcept {
  outgoing_.pump();
  for (rail& each : rails_) each.ring();
  if (railed_ && !watch_.is_soon() && (waits_for_rails() || next_limit())) watch_.begin();
  try_finish();
}

std::optional<named_place> rails_link::place_of(const work_request& work, const rail& over) const noexcept {
  if (work.kind == work_kind::send) return named_place{};
  if (is_handle(work.remote_key)) {
    const rail_key* const its = peers_.find(work.remote_key, over.number(), over.epoch());
    if (its == nullptr) return std::nullopt;
    return named_place{.key = its->key, .address = its->address + work.remote_address};
  }
  if (!railed_ || (over.number() == 0 && over.epoch() == 0)) {
    return named_place{.key = work.remote_key, .address = work.remote_address};
  }
  if (over.peer_fabric() >= work.names.size() || work.names[over.peer_fabric()].key == 0) return std::nullopt;
  return work.names[over.peer_fabric()];
}

std::optional<work_status> rails_link::taken_back(const work_request& work) noexcept {
  const auto* const gone = is_handle(work.remote_key) ? peers_.find_withdrawn(work.remote_key) : nullptr;
  if (gone == nullptr) return std::nullopt;
  return gone->at_deadline ? work_status::expired : work_status::taken_back;
}

// Over RDMA devices only the failed request shows which memory was refused. note_why() keeps the link's own error,
// which is known already unless the peer closed the link in an orderly way before the request failed.
bool rails_link::is_late(rail& over, const work_request& work) noexcept {
  const std::size_t number = over.number();
  if (refusals_.is_named(number)) return true;
  refusals_.note_why(number,
                     make_error(errc::remote_access, "the peer has not opened that memory, or its process has ended"));
  if (!may_lose_rails() || !is_handle(work.remote_key)) {
    end_because(false, *refusals_.why(number));
    return false;
  }
  outage_.note_refusal();
  refusals_.note_named(number, over.epoch(), work.remote_key);
  if (fences_.is_due(number)) fence(over);
  return !life_.is_broken();
}

void rails_link::part_ended(rail& over, part& item, work_status status) noexcept {
  outgoing_.part_ended(over, item, status);
  if (fences_.awaits_answers_over(over.number()) && over.parts_out() == 0) over.give_up(left_by_peer);
  pump();
}

// ---- receives, and memory for the peer ----

void rails_link::post_receive(receive_work& work) noexcept {
  const turn outer(*this);
  if (incoming_.post(work) && railed_) begin_railed();
}

task<exposed_place> rails_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  task<exposed_place> opening =
      railed_ ? own_.expose(memory, uses, gate) : rails_[0].carrier()->expose(memory, uses, gate);
  return find_by(joining_.route(0).way->domain().fabric(), std::move(opening));
}

void rails_link::revoke(std::uint64_t key, revocation& who) noexcept {
  const turn outer(*this);
  if (!railed_) return rails_[0].carrier()->revoke(key, who);
  own_.revoke(key, who);
}

void rails_link::keys_closed() noexcept {
  incoming_.deliver_held();
  if (life_.peer_has_finished() && incoming_.has_delivered_all() && !life_.is_broken()) {
    end_because(true, make_error(errc::peer_closed, "the peer closed the connection"));
  }
}

// ---- control messages ----

void rails_link::controlled(rail& over, const control& said) noexcept {
  const std::size_t waiting = std::max(over.waiting_controls(), out_ != nullptr ? out_->waiting_controls() : 0);
  if (is_question(said.kind) && waiting >= most_waiting) {
    return refuse_peer("the peer keeps asking and confirms no answers");
  }
  controlled(said.rail < rails_.size() ? &rails_[said.rail] : nullptr, over, said);
  pump();
}

void rails_link::controlled(rail* about, rail& over, const control& said) noexcept {
  switch (said.kind) {
    case control_kind::hello:
      return greeted(over);
    case control_kind::welcome:
      if (over.is_unopened()) rail_opened(over);
      return;
    case control_kind::credits:
      if (!joining_.options().connects && over.is_unopened()) {  // the first on a rail that has joined
        over.send({.kind = control_kind::welcome});
        rail_opened(over);
      }
      return;
    case control_kind::fence:
      if (about == nullptr) return refuse_peer("a fence for an unknown rail");
      fences_.asked(*about, over, said);
      joining_.shut(about->number(), said.epoch);
      // mutant: say that a rail is fenced
      if (about->epoch() <= said.epoch) peer_gave_up(*about);
      return fences_.answer(*about);
    case control_kind::fenced:
      if (about == nullptr || !fences_.asks(about->number(), said.epoch)) return;  // a repeated answer
      if (said.number > outgoing_.messages()) return refuse_peer("more messages received than were sent");
      fences_.answered(about->number(), said.number);
      return look_at_fence(*about);
    case control_kind::confirm: {
      control answer = said;
      answer.kind = control_kind::confirmed;
      return over.send(answer);
    }
    case control_kind::names:
      return own_.asked(over, said);
    case control_kind::confirmed:
      return outgoing_.confirmed(over, said.number);
    case control_kind::exposed:
      return peer_exposed(said);
    case control_kind::revoke:
      return incoming_.give_back(over, said.number);
    case control_kind::withdrawn:
      return peer_withdrew(said);
    case control_kind::refused:
      if (about == nullptr) return refuse_peer("memory refused over an unknown rail");
      return refusals_.explained(*about, said);
    case control_kind::listens:
      return joining_.learn_address(said);
    case control_kind::finish:
      if (life_.peer_has_finished()) return;
      life_.peer_finished();
      return keys_closed();
  }
}

// The peer gives up a rail over which it refuses an access as well, and asking for the fence over another rail may
// overtake the refusal. Only the refusal tells that an atomic operation has not happened.
void rails_link::peer_gave_up(rail& which) noexcept {
  if (which.phase() != rail::state::up || which.parts_out() == 0 || !outgoing_.has_atomic_out()) {
    return which.give_up("the peer has given this rail up");
  }
  if (fences_.awaits_answers_over(which.number())) return;
  fences_.await_answers(which.number(), home_.now() + answer_time);
  watch_.begin();
}

void rails_link::greeted(rail& over) noexcept {
  if (over.number() != 0 || over.epoch() != 0) return refuse_peer("a greeting on the wrong rail");
  if (std::exchange(greeted_, true)) return refuse_peer("a second greeting");
  joining_.greeted(over);
}

void rails_link::peer_exposed(const control& said) noexcept try {
  if (!is_handle(said.number)) return refuse_peer("an invalid handle for exposed memory");
  if (!peers_.learn(said)) {  // mutant: keep what a peer has exposed
    refuse_peer("the peer has exposed more than connection_options::max_peer_exposures at a time");
  }
} catch (const std::bad_alloc&) {
  fail(make_error(errc::no_memory, "store the memory that the peer exposes"));
}

void rails_link::peer_withdrew(const control& said) noexcept try {
  if (!is_handle(said.number)) return refuse_peer("an invalid handle for withdrawn memory");
  peers_.withdraw(said.number, said.at_deadline);
} catch (const std::bad_alloc&) {
  fail(make_error(errc::no_memory, "store that the peer has taken memory back"));
}

// ---- rails that come and go ----

void rails_link::rail_opened(rail& which) noexcept {
  which.open();
  joining_.rail_opened(which.number());
  watch_.rail_opened(which);
  news_.came(which);
  if (outage_.is_on()) news_.goes_on(home_.now() - outage_.since());
  outage_.rail_came();
  own_.rail_came(which.number());
  if (out_ == nullptr) choose_message_rail(make_error(errc::peer_vanished));
}

void rails_link::rail_ended(rail& which, bool orderly, const error& why) noexcept {
  if (!railed_) return end_because(orderly, why);
  if (life_.has_finished()) return;
  const std::uint8_t number = which.number();
  const bool carried_messages = &which == out_;
  if (carried_messages) messages_go_over(nullptr);
  if (life_.is_broken()) return;
  if (!orderly && is_final(why, *which.carrier()) && !goes_on_without(which, why)) return end_because(false, why);
  if (!orderly && why.code() == errc::protocol_error) {
    outage_.suspect(why);
    if (own_.withdrawn().has_any_on(number, which.epoch())) outage_.note_refusal();
  }
  const std::optional<refused_access> refusal = which.carrier()->refusal();
  const bool tells_peer = refusal && refusal->is_peers;
  if (orderly && which.parts_out() != 0) {
    fences_.await_answers(number, home_.now() + answer_time);
    watch_.begin();
  } else if (!tells_peer) {
    which.give_up(left_by_peer);
  }
  fences_.rail_lost(which, carried_messages);
  outgoing_.rail_lost(which, carried_messages);
  if (!life_.is_shut_down()) {
    which.health().lost.add(1);
    news_.lost(which);
  }
  if (out_ != nullptr) return fence(which);
  // The system of a killed peer closes its links in an orderly way; a peer that closes by itself has sent `finish`
  // before.
  choose_message_rail(orderly && !life_.peer_has_finished() ? make_error(errc::peer_vanished) : why);
}

void rails_link::rail_closed(rail& which) noexcept {
  const std::uint8_t number = which.number();
  own_.rail_closed(number);
  joining_.link_gone(number);
  // Not earlier: until the link is gone, messages that its device has taken may still arrive.
  if (&which == incoming_.over()) incoming_.receive_over(nullptr);
  const bool was_awaited = fences_.stop_awaiting(number);
  if (life_.is_broken() || !railed_) return;
  if (refusals_.is_unnamed(number)) return end_because(false, *refusals_.why(number));
  if (was_awaited && out_ == nullptr && outage_.is_on()) all_lost(outage_.why());
  if (life_.is_broken()) return;
  joining_.rail_closed(number);
  fences_.answer(which);
  look_at_fence(which);
}

void rails_link::messages_go_over(rail* over) noexcept {
  if (out_ != nullptr) out_->health().carries_messages.set(0);
  out_ = over;
  if (out_ != nullptr) out_->health().carries_messages.set(1);
}

void rails_link::choose_message_rail(const error& why) noexcept {
  const auto open = std::find_if(rails_.begin(), rails_.end(), [](const rail& each) { return each.is_open(); });
  if (open == rails_.end()) return all_lost(why);
  messages_go_over(&*open);
  outage_.end();
  refusals_.may_explain(home_.now());
  tell_peer_of_state();
}

// Repeats all that the peer may have missed with a lost rail; the peer ignores what it knows already.
void rails_link::tell_peer_of_state() noexcept {
  for (rail& each : rails_) {
    if (fences_.is_due(each.number())) fence(each);
    fences_.answer(each);
  }
  own_.announce_all();
  finish_sent_ = false;  // mutant: forget that the end
}

void rails_link::all_lost(const error& why) noexcept {
  outage_.begin(home_.now(), why);
  if (fences_.awaits_answers()) return;  // rail_closed() looks again
  const bool may_come = !life_.has_ended() && outage_.limit().count() > 0;
  if (!may_come) return end_because(false, outage_.suspicion_or(why));
  news_.none_left(outage_.limit());
  joining_.ask_for_all();
  watch_.begin();
}

// Reports the failed attempt. While there is no rail, also ends the connection if the attempt shows that the peer is
// gone: it no longer knows the connection, or another program answers at its address.
void rails_link::not_joined(const rail& which, const rail_route& over, const error& why) {
  news_.refused(which);
  if (out_ != nullptr || !outage_.is_on() || fences_.awaits_answers()) return;
  const turn outer(*this);
  const std::string where = fmt::format("resume the connection at {} over {}", over.address, over.way->name());
  const error attempt = why.within(where);
  outage_.note_attempt(attempt);
  if (why.code() == errc::peer_restarted) fail(error(errc::peer_restarted, where));
  if (why.code() == errc::protocol_error) fail(attempt.within("another program answers for the peer"));
}

// ---- fences, and accesses to memory that was taken back ----

void rails_link::fence(rail& which) noexcept {
  if (out_ == nullptr || refusals_.is_unnamed(which.number())) return;
  refusals_.tell(which);
  if (out_ != nullptr) fences_.ask(which);  // what was told may have ended the rail that it went over
}

void rails_link::look_at_fence(rail& which) noexcept {
  if (!fences_.is_over(which)) return;
  news_.fenced(which);
  refusals_.settled(which.number());
  const bool carried = fences_.settle(which.number());
  outgoing_.resume(which, carried, fences_.peer_received());
  pump();
}

bool rails_link::may_lose_rails() const noexcept {
  return railed_ && !life_.has_finished() && (rails_.size() > 1 || joining_.options().how.resume_within.count() > 0);
}

// Whether a late access to memory that was taken back may have ended this rail, and nothing worse: then the connection
// goes on.
bool rails_link::goes_on_without(rail& which, const error& why) noexcept {
  if (!may_lose_rails()) return false;
  const std::optional<refused_access> what = which.carrier()->refusal();
  if (!what || !refusals_.may_have_been_late(which, *what, why)) return false;
  outage_.note_refusal();
  if (refusals_.due_at()) watch_.begin();
  return true;
}

// ---- the watch ----

bool rails_link::look_at_limits() noexcept {
  const time_point now = home_.now();
  if (!fences_.awaits_answers()) {
    if (outage_.excuses_absence(now)) joining_.ask_anew();
    if (outage_.has_lasted_too_long(now)) {  // mutant: wait for rails
      end_because(false, outage_.why_none_came());
      return false;
    }
  }
  fences_.give_up_late(now);
  if (life_.is_broken()) return false;
  const error* const unexplained = refusals_.overdue(now);
  if (unexplained != nullptr && out_ != nullptr) {
    end_because(false, *unexplained);
    return false;
  }
  outgoing_.ask_for_arrival();
  joining_.give_up_unopened();
  return !life_.is_broken();
}

std::optional<time_point> rails_link::next_limit() const noexcept {
  std::optional<time_point> next;
  const auto look_at = [&](std::optional<time_point> when) {
    if (when) next = std::min(next.value_or(time_point::max()), *when);
  };
  if (outage_.is_on() && !fences_.awaits_answers()) look_at(outage_.over_at());
  look_at(fences_.first_deadline());
  if (out_ != nullptr) look_at(refusals_.due_at());
  look_at(joining_.first_deadline());
  return next;
}

bool rails_link::waits_for_rails() const noexcept {
  return outgoing_.waits_for_rails() || fences_.is_answer_due() ||
         std::any_of(rails_.begin(), rails_.end(), [](const rail& each) { return each.parts_out() != 0; });
}

// The answer to a fence counts as due over the message rail, over which it was asked for, and not over the lost rail,
// which the peer may take its time to close.
bool rails_link::waits_for(const rail& which) noexcept {
  return which.parts_out() != 0 || outgoing_.awaits_answer(which) || (&which == out_ && fences_.is_answer_due());
}

// ---- the end ----

void rails_link::shut_down() noexcept {
  const turn outer(*this);
  life_.shut_down();
  pump();
}

void rails_link::peer_finished() noexcept {
  if (!railed_ && rails_[0].carrier() != nullptr) rails_[0].carrier()->peer_finished();
}

// Continues an orderly close once everything that was posted has completed: sends `finish`, and shuts the rails down
// once the peer has sent it, too. If the peer does not know rails, shuts the only rail down at once.
void rails_link::try_finish() noexcept {
  if (!life_.is_shut_down() || life_.is_closed()) return;
  if (!outgoing_.empty()) return outgoing_.ask_for_arrival();
  if (!railed_) {
    if (life_.has_finished()) return;
    life_.finish();
    return rails_[0].shut_down();
  }
  if (!finish_sent_ && message_rail() != nullptr && !life_.has_finished()) {
    finish_sent_ = true;
    out_->send({.kind = control_kind::finish});
  }
  if (finish_sent_ && life_.peer_has_finished() && !life_.has_finished()) {
    life_.finish();
    tasks_.stop();
    joining_.stop();
    news_.stop();
    for (rail& each : rails_) each.shut_down();
  }
}

void rails_link::abort(std::string_view why) noexcept {
  if (life_.is_closed()) return;
  const turn outer(*this);
  end_because(false, make_error(errc::closed, why));
  for (rail& each : rails_) each.give_up(why);
  close_rails();
}

// Reports the reason to the peer over each rail whose transport can do so.
void rails_link::refuse(violation what, std::string_view why) noexcept {
  if (life_.is_broken() || life_.is_closed()) return;
  const turn outer(*this);
  life_.break_off();
  if (!life_.has_ended()) life_.end(false, make_error(errc::protocol_error, why));
  for (rail& each : rails_) {
    if (each.phase() == rail::state::up) each.carrier()->refuse(what, why);
  }
  close_rails();
}

void rails_link::fail(const error& why) noexcept {
  const turn outer(*this);
  if (!life_.is_broken()) end_because(false, why);
}

// Reports the end to the connection, and closes the rails unless it is `orderly`: then the peer sends no more, and this
// end still may.
void rails_link::end_because(bool orderly, const error& why) noexcept {
  if (life_.has_ended()) {
    if (!orderly) close_rails();
    return;
  }
  if (!orderly) life_.break_off();
  // If the peer ends the connection instead of saying that it has taken its memory back, the refusal is the reason.
  const error* const refused = orderly ? nullptr : refusals_.first_why();
  const error reason = refused != nullptr ? *refused : why;
  if (!orderly && railed_) news_.ended(reason, outage_.is_on() && outage_.limit().count() > 0);
  life_.end(orderly, reason);
  if (orderly && !railed_) life_.break_off();
  if (!orderly) close_rails();
}

void rails_link::close_rails() noexcept {
  life_.break_off();
  tasks_.stop();
  outage_.give_up();
  joining_.stop();
  news_.stop();
  set_up_.registered.reset();
  for (rail& each : rails_) {  // a rail that is ending may still be sending something to the peer
    if (each.phase() == rail::state::up) each.give_up("the connection has ended");
  }
  outgoing_.end();
}

// Closes the link once it has ended and nothing of it is in progress.
void rails_link::settle() noexcept {
  if (!life_.has_begun() || life_.is_closed()) return;
  ++depth_;
  if (life_.is_broken()) outgoing_.end();
  const bool all_gone =
      std::all_of(rails_.begin(), rails_.end(), [](const rail& each) { return each.phase() == rail::state::absent; });
  const bool over = life_.may_close() && all_gone && tasks_.empty() && outgoing_.empty();
  if (over) {
    life_.close();
    watch_.stop();
    set_up_.registered.reset();
    for (rail& each : rails_) registry_->rails.remove(each.health());
    incoming_.flush();
  }
  --depth_;
  if (over) life_.tell_closed();
}

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/rails/rails_link.hpp>
#include <weft/net/rails/random.hpp>
#include <weft/net/rails/told_address.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace weft::net::rails {

using weft::detail::make_error;

namespace {

using namespace std::chrono_literals;

// How often the rails are looked at while something is in flight. A rail that has not moved is given up at the third
// look in a row at which another one has, less than 100 ms after it fell silent; later where that has proved too soon.
// While all are silent none can be blamed, and the pauses double until a message comes over any of them.
constexpr duration watch_period = 16ms;
constexpr duration longest_watch = 60s;
constexpr duration join_timeout = 2s;
// How long a rail that the peer has ended in order may still bring answers: a refused access ends a device's
// connection, and the notice of the end may overtake the refusal.
constexpr duration answer_time = 20ms;
constexpr std::string_view left_by_peer = "the peer has ended this rail";
// A rail that ends sooner than that after it came up is not asked for at once. One that was given up for its silence
// and is back sooner was slow, not silent.
constexpr duration lasting = 1s;
// The most control messages that wait for a peer which asks on and on and confirms nothing. They include announcements
// of exposed memory, one for each rail.
constexpr std::size_t most_waiting = std::size_t{1} << 18;
// A peer asks once over each rail, and again when it has lost one.
constexpr std::size_t most_questions = std::size_t{4} * max_rails;

// How long a peer may take to say that it used memory that was taken back, and how long rails that ended because of
// that may take to come back, whatever resume_within says.
constexpr std::chrono::milliseconds time_to_explain = 2s;

// True if the peer has broken the rules, or was refused an access: another rail does not mend that, unless it was late.
bool is_final(const error& why, const link& ended) noexcept {
  if (why.code() == errc::protocol_error || why.code() == errc::connection_failed) {
    return !ended.may_have_failed_alone();
  }
  return why.code() == errc::remote_access || why.code() == errc::not_receiving ||
         why.code() == errc::message_too_large;
}

std::string_view kind_of(const transport& way) noexcept { return way.name().substr(0, way.name().find(':')); }

// The capabilities that hold over every rail. If rails are of different kinds, only the first one's capabilities are
// known, so those that may differ are not promised.
capabilities promised(capabilities of_first, const std::vector<transport*>& ways) noexcept {
  const auto differs = [&](const transport* each) { return kind_of(*each) != kind_of(*ways.front()); };
  if (std::none_of(ways.begin(), ways.end(), differs)) return of_first;
  of_first.checksum = of_first.explains_end = false;
  of_first.completes_on_answer = of_first.write_completes_when_placed = false;
  of_first.max_whole_write_bytes = 0;
  return of_first;
}

bool can_do(const capabilities& of_rail, const capabilities& what) noexcept {
  return of_rail.max_parts >= what.max_parts && of_rail.max_read_parts >= what.max_read_parts &&
         (of_rail.outgoing_reads != 0 || what.outgoing_reads == 0);
}

// True if this end owes an answer to such a message.
bool is_question(control_kind kind) noexcept {
  return kind == control_kind::confirm || kind == control_kind::names || kind == control_kind::fence ||
         kind == control_kind::refused;
}

// Sets a flag for as long as it lives.
class flag_while {
 public:
  explicit flag_while(bool& flag) noexcept : flag_(flag) { flag_ = true; }
  flag_while(const flag_while&) = delete;
  flag_while& operator=(const flag_while&) = delete;
  ~flag_while() { flag_ = false; }

 private:
  bool& flag_;
};

}  // namespace

// Keeps the link from being destroyed, as its rails do.
class rails_link::at_work {
 public:
  explicit at_work(rails_link& of) noexcept : of_(of) { ++of.tasks_; }
  at_work(const at_work&) = delete;
  at_work& operator=(const at_work&) = delete;
  ~at_work() {
    const rail_owner::turn outer(of_);
    --of_.tasks_;
  }

 private:
  rails_link& of_;
};

// Held by a task that asks a rail for keys, which was counted when it was begun.
class rails_link::naming {
 public:
  explicit naming(rails_link& of) noexcept : of_(of) {}
  naming(const naming&) = delete;
  naming& operator=(const naming&) = delete;
  ~naming() {
    const rail_owner::turn outer(of_);
    --of_.naming_;
    of_.answer_about_names();
  }

 private:
  rails_link& of_;
};

std::uint32_t rails_link::random_number() const {
  std::array<std::byte, sizeof(std::uint32_t)> bytes;
  draw(home_.calls(), bytes);
  return std::bit_cast<std::uint32_t>(bytes);
}

registry::delivery registry::deliver(const std::shared_ptr<registry>& self, const join& said,
                                     std::unique_ptr<link_request>& request) {
  const std::lock_guard lock(self->mutex_);
  const auto found = self->all_.find(said.id);
  if (found == self->all_.end()) return delivery::unknown;
  if (found->second.which == nullptr) return delivery::too_early;
  const auto shared = std::make_shared<std::unique_ptr<link_request>>(std::move(request));
  try {
    found->second.home->post([self, said, shared] {
      rails_link* const which = self->find(said.id);
      if (which != nullptr) which->join_asked(said, std::move(*shared));
    });
  } catch (...) {
    request = std::move(*shared);
    throw;
  }
  return delivery::delivered;
}

// ---- beginning ----

rails_link::rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how)
    : home_(*executor_core::current()),
      registry_(std::move(all)),
      set_up_(std::move(how)),
      capabilities_(promised(first->properties(), set_up_.ways)),
      peer_(first->peer()),
      first_(std::move(first)) {
  draw(home_.calls(), std::as_writable_bytes(std::span(&pauses_seed_, 1)));
  for (std::size_t i = 0; i < set_up_.routes.size(); ++i) rails_.emplace_back(*this, static_cast<std::uint8_t>(i));
}

rails_link::~rails_link() {
  assert((closed_ || events_ == nullptr) && "a link of several rails was destroyed before it was closed");
  for (place& each : rails_) registry_->rails.remove(each.way.health());
}

void rails_link::start(link_events& events, const link_parameters& parameters) {
  parameters_ = parameters;
  railed_ = parameters.agreed.rails && parameters.native;
  first_receives_ = parameters.receive_depth;
  held_.reserve(parameters.receive_depth);
  idle_.reserve(parameters.receive_depth);
  returning_.reserve(parameters.receive_depth);
  held_messages_.reserve(parameters.receive_depth);
  if (set_up_.registered) set_up_.registered->begin(*this);
  if (!railed_) set_up_.receives.reset();
  if (railed_) {
    outgoing_.begin(std::move(set_up_.kept_memory), std::max(parameters.send_depth, parameters.receive_depth));
  }
  events_ = &events;
  const turn outer(*this);
  try {
    rails_[0].way.begin({.carrier = std::move(first_),
                         .fabric = set_up_.routes[0].way->name(),
                         .parameters = parameters,
                         .receives = std::move(set_up_.receives),
                         .control_memory = std::move(set_up_.control_memory),
                         .is_open = true,
                         .is_far = is_far(*set_up_.routes[0].way)});
  } catch (...) {
    set_up_.registered.reset();
    events_ = nullptr;
    throw;
  }
  in_ = &rails_[0].way;
  messages_go_over(in_);
  if (railed_) begin_counting();
  const link& carrier = *out_->carrier();
  capabilities_.max_whole_write_bytes = promised(carrier.properties(), set_up_.ways).max_whole_write_bytes;
}

// The end that asks for the rails knows them before they come.
void rails_link::begin_counting() noexcept {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    rail_health& its = rails_[i].way.health();
    const rail_route& route = set_up_.routes[i];
    if (i != 0 && set_up_.connects) its.goes(route.way->name(), route.address);
    if (i != 0) its.becomes(rail_state::absent, home_.now());
    registry_->rails.add(its);
  }
}

std::vector<rail_statistics> rails_link::rails() const {
  std::vector<rail_statistics> all;
  for (std::size_t i = 0; railed_ && i < rails_.size(); ++i) {
    const rail_health& its = rails_[i].way.health();
    if (its.is_known()) all.push_back(its.snapshot(static_cast<unsigned>(i), home_.now()));
  }
  return all;
}

// Called after the connection has posted its receives.
void rails_link::begin_railed() noexcept {
  rail& first = rails_[0].way;
  if (first.phase() != rail::state::up) return;
  first.post_control_receives();
  if (!set_up_.connects) return;
  control hello;
  hello.kind = control_kind::hello;
  first.send(hello);
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
  for (place& each : rails_) each.way.ring();
  if (must_watch()) arm_watch();
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
  if (!is_handle(work.remote_key)) return std::nullopt;
  const withdrawn_memory::item* const gone = peers_.find_withdrawn(work.remote_key);
  if (gone == nullptr) return std::nullopt;
  return gone->at_deadline ? work_status::expired : work_status::taken_back;
}

// Over devices only the failed request tells which memory it was. The link's error is known already, unless the peer
// ended the link in order before this answer.
bool rails_link::is_late(rail& over, const work_request& work) noexcept {
  place& its = rails_[over.number()];
  if (its.refused != 0) return true;
  if (!its.refused_why) {
    its.refused_why = make_error(errc::remote_access, "the peer has not opened that memory, or its process has ended");
  }
  if (!may_lose_rails() || !is_handle(work.remote_key)) {
    end_because(false, *its.refused_why);
    return false;
  }
  lost_by_refusals_ = true;
  note_refusal(its, work.remote_key);
  if (its.must_fence) fence(its);
  return !ended_;
}

void rails_link::request_completed(work_request& work, work_status status) noexcept {
  events_->completed(work, status);
}

void rails_link::part_ended(rail& over, part& item, work_status status) noexcept {
  outgoing_.part_ended(over, item, status);
  place& its = rails_[over.number()];
  if (its.awaits_answers_until && over.parts_out() == 0) over.give_up(left_by_peer);
  pump();
}

// ---- messages ----

void rails_link::post_receive(receive_work& work) noexcept {
  const turn outer(*this);
  if (first_receives_ != 0) {  // the set-up has announced them to the device, in this order
    if (rails_[0].way.phase() == rail::state::absent) {
      idle_.push_back(&work);
    } else {
      rails_[0].way.post_receive(work);
    }
    if (--first_receives_ == 0 && railed_) begin_railed();
    return;
  }
  if (in_ == nullptr || in_->phase() == rail::state::absent) return idle_.push_back(&work);
  take_back(*in_, work);
}

// On the rail that messages arrive over, as many of the connection's receives are held back as the rail has of its own:
// a message that lands in one of the rail's is copied into a held one. Others are posted only once that many are held.
void rails_link::take_back(rail& over, receive_work& work) noexcept {
  if (&over != in_) return idle_.push_back(&work);
  if (railed_ && held_.size() < control_receives) return held_.push_back(&work);
  over.post_receive(work);
}

void rails_link::receive_returned(receive_work& work) noexcept { idle_.push_back(&work); }

void rails_link::message_came(rail& over, receive_work& work, const arrival& what) noexcept {
  if (!over.is_own(work)) {
    if (&over == in_) return deliver(work, what);
    idle_.push_back(&work);
    return refuse_peer("a message over a rail that carries none");
  }
  if (&over != in_ || held_.empty()) return refuse_peer("a message for which there is no receive");
  receive_work& room = *held_.back();
  held_.pop_back();
  const std::size_t bytes = what.immediate ? 0 : what.bytes;
  std::memcpy(room.memory.data(), work.memory.data(), bytes);
  over.post_receive(work);
  deliver(room, what);
}

void rails_link::deliver(receive_work& work, const arrival& what) noexcept {
  if (ended_) return idle_.push_back(&work);
  ++received_;
  arrival seen = what;
  if (railed_) seen.invalidated_key.reset();  // a key of one rail does not name the memory
  if (given_back_ != 0) seen.invalidated_key = std::exchange(given_back_, 0);
  if (seen.invalidated_key || !held_messages_.empty()) [[unlikely]] {
    held_messages_.push_back({&work, seen});  // there is room for all receives
    return deliver_held();
  }
  events_->received(work, seen);
}

// In order, each once no key opens the memory that it gives back, so that nothing lands there when its receiver looks.
void rails_link::deliver_held() noexcept {
  while (!held_messages_.empty() && !ended_) {
    const held_message next = held_messages_.front();
    exposed_memory* const given = next.what.invalidated_key ? find_exposed(*next.what.invalidated_key) : nullptr;
    if (given != nullptr && given->is_closing()) return;
    held_messages_.erase(held_messages_.begin());
    events_->received(*next.work, next.what);
  }
  if (peer_has_finished_ && !ended_) end_in_order();
}

void rails_link::receive_over(rail* over) noexcept {
  in_ = over;
  given_back_ = 0;  // the peer will say so again
  idle_.insert(idle_.end(), held_.begin(), held_.end());
  held_.clear();
  if (in_ == nullptr) return;
  assert(returning_.empty());
  returning_.swap(idle_);
  for (receive_work* each : returning_) take_back(*over, *each);
  returning_.clear();
  if (in_ != nullptr && in_->carrier() != nullptr) in_->carrier()->ring();
}

// ---- control messages ----

void rails_link::controlled(rail& over, const control& said) noexcept {
  place* const about = said.rail < rails_.size() ? &rails_[said.rail] : nullptr;
  const std::size_t waiting = std::max(over.waiting_controls(), out_ != nullptr ? out_->waiting_controls() : 0);
  if (is_question(said.kind) && waiting >= most_waiting)
    return refuse_peer("the peer keeps asking and confirms no answers");
  switch (said.kind) {
    case control_kind::hello:
      if (over.number() != 0 || over.epoch() != 0) return refuse_peer("a greeting on the wrong rail");
      if (std::exchange(greeted_, true)) return refuse_peer("a second greeting");
      if (set_up_.connects) {
        use_told_addresses();
        ask_for_all();
      } else {
        tell_addresses();
        control hello;
        hello.kind = control_kind::hello;
        over.send(hello);
      }
      break;
    case control_kind::welcome:
      if (over.is_unopened()) rail_opened(over);
      break;
    case control_kind::credits:
      if (!set_up_.connects && over.is_unopened()) {  // the first on a rail that has joined
        control welcome;
        welcome.kind = control_kind::welcome;
        over.send(welcome);
        rail_opened(over);
      }
      break;
    case control_kind::fence:
      if (about == nullptr) return refuse_peer("a fence for an unknown rail");
      about->answer_owed = true;
      about->answer_epoch = said.epoch;
      about->shut_epoch = std::max(about->shut_epoch, said.epoch);
      if (said.carried_messages) {
        about->messages_move_to = &over;
        about->moves_to_epoch = over.epoch();
      }
      // defect: say that a rail is fenced
      if (about->way.epoch() <= said.epoch) about->way.give_up("the peer has given this rail up");
      answer_fence(*about);
      break;
    case control_kind::fenced:
      if (about == nullptr || !about->must_fence || said.epoch != about->fence_epoch) break;  // a repeated answer
      if (said.number > outgoing_.messages()) return refuse_peer("more messages received than were sent");
      about->peer_received = most_received_ = std::max(most_received_, said.number);
      look_at_fence(*about);
      break;
    case control_kind::confirm: {
      control answer = said;
      answer.kind = control_kind::confirmed;
      over.send(answer);
      break;
    }
    case control_kind::names:
      if (questions_.size() >= most_questions) return refuse_peer("more questions than there are rails");
      try {
        questions_.push_back({.number = said.number, .handle = said.key, .rail = over.number(), .epoch = over.epoch()});
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "store a question from the peer"));
      }
      answer_about_names();
      break;
    case control_kind::confirmed:
      outgoing_.confirmed(over, said.number);
      break;
    case control_kind::exposed:
      if (!is_handle(said.number)) return refuse_peer("an invalid handle for exposed memory");
      try {
        if (!peers_.learn(said)) {  // defect: keep what a peer has exposed
          return refuse_peer("the peer has exposed more than connection_options::max_peer_exposures at a time");
        }
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "store the memory that the peer exposes"));
      }
      break;
    case control_kind::revoke:
      give_back(over, said.number);
      break;
    case control_kind::withdrawn:
      if (!is_handle(said.number)) return refuse_peer("an invalid handle for withdrawn memory");
      try {
        peers_.withdraw(said.number, said.at_deadline);
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "store that the peer has taken memory back"));
      }
      break;
    case control_kind::refused:
      if (about == nullptr) return refuse_peer("memory refused over an unknown rail");
      explained(*about, said);
      break;
    case control_kind::listens:
      if (!set_up_.connects || told_.size() >= max_rails) return refuse_peer("more addresses than there are rails");
      try {
        told_.push_back(told_address(said, peer_).value_or(std::string()));
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "store an address of the peer"));
      }
      break;
    case control_kind::finish:
      if (std::exchange(peer_has_finished_, true)) break;
      if (held_messages_.empty()) end_in_order();
      break;
  }
  pump();
}

void rails_link::end_in_order() noexcept {
  end_because(true, make_error(errc::peer_closed, "the peer closed the connection"));
}

void rails_link::refuse_peer(const char* why, violation what) noexcept {
  break_off(what, make_error(errc::protocol_error, why), why);
}

// ---- a rail that ends ----

void rails_link::rail_ended(rail& which, bool orderly, const error& why) noexcept {
  place& its = rails_[which.number()];
  if (!railed_) return end_because(orderly, why);
  if (rails_shut_) return;
  const bool carried_messages = &which == out_;
  if (carried_messages) messages_go_over(nullptr);
  if (ended_) return;
  if (!orderly && is_final(why, *which.carrier()) && !goes_on_without(its, why)) return end_because(false, why);
  if (!orderly && why.code() == errc::protocol_error) {
    suspicion_ = why;
    lost_by_refusals_ = lost_by_refusals_ || withdrawn_.has_any_on(which.number(), which.epoch());
  }
  const std::optional<refused_access> refusal = which.carrier()->refusal();
  const bool tells_peer = refusal && refusal->is_peers;
  if (orderly && which.parts_out() != 0) {
    its.awaits_answers_until = home_.now() + answer_time;
    arm_watch();
  } else if (!tells_peer) {
    which.give_up(left_by_peer);
  }
  its.must_fence = true;
  its.fence_epoch = which.epoch();
  its.peer_received.reset();
  outgoing_.rail_lost(which, carried_messages);
  // defect: do not wait for what has come
  if (carried_messages && !std::exchange(its.carried_messages, true)) ++unresolved_;
  if (!shutting_down_) {
    which.health().lost.add(1);
    news_.lost(which);
  }
  if (out_ != nullptr) return fence(its);
  // A killed peer's system ends its links in order; a peer that closes has sent `finish` before.
  choose_message_rail(orderly && !peer_has_finished_ ? make_error(errc::peer_vanished) : why);
}

void rails_link::messages_go_over(rail* over) noexcept {
  if (out_ != nullptr) out_->health().carries_messages.set(0);
  out_ = over;
  if (out_ != nullptr) out_->health().carries_messages.set(1);
}

void rails_link::choose_message_rail(const error& why) noexcept {
  const auto open = std::find_if(rails_.begin(), rails_.end(), [](const place& each) { return each.way.is_open(); });
  if (open == rails_.end()) return all_lost(why);
  messages_go_over(&open->way);
  lost_since_.reset();
  for (place& each : rails_) each.unexplained_since = home_.now();
  tell_peer_of_state();
}

// ---- memory that was taken back ----

bool rails_link::may_lose_rails() const noexcept {
  return railed_ && !rails_shut_ && (rails_.size() > 1 || set_up_.how.resume_within.count() > 0);
}

// True if only a late access to memory that was taken back has ended this rail: the connection goes on.
bool rails_link::goes_on_without(place& which, const error& why) noexcept {
  if (!may_lose_rails()) return false;
  const std::optional<refused_access> what = which.way.carrier()->refusal();
  if (!what || !may_have_been_late(which, *what, why)) return false;
  lost_by_refusals_ = true;
  return true;
}

bool rails_link::may_have_been_late(place& which, const refused_access& what, const error& why) noexcept {
  const std::size_t number = which.way.number();
  const std::uint32_t epoch = which.way.epoch();
  if (!what.is_peers) {
    which.refused = 0;
    which.refused_why = why;
    const std::uint64_t handle = what.key ? peers_.handle_of(number, epoch, *what.key) : 0;
    if (handle != 0) note_refusal(which, handle);
    return handle != 0 || !what.key;
  }
  if (what.key) {
    const withdrawn_memory::item* const gone = withdrawn_.find(number, epoch, *what.key);
    if (gone == nullptr) return false;
    which.late = gone->handle;
    note_late(which, epoch, *gone);
    return true;
  }
  if (which.explained == std::uint64_t{epoch} + 1) return true;
  if (!withdrawn_.has_any_on(number, epoch)) return false;
  which.unexplained = why;
  which.unexplained_since = home_.now();
  arm_watch();
  return true;
}

// The peer has refused this memory to this end.
void rails_link::note_refusal(place& which, std::uint64_t handle) noexcept try {
  which.refused = handle;
  peers_.withdraw(handle, false);
} catch (const std::bad_alloc&) {
  fail(make_error(errc::no_memory, "store that the peer has taken memory back"));
}

void rails_link::tell_of_refusal(const place& which) noexcept {
  const withdrawn_memory::item* const gone = which.late != 0 ? withdrawn_.find(which.late) : nullptr;
  if (gone != nullptr) tell_withdrawn(*out_, gone->handle, gone->at_deadline);
  if (which.refused == 0) return;
  control asked;
  asked.kind = control_kind::refused;
  asked.rail = which.way.number();
  asked.epoch = which.fence_epoch;
  asked.number = which.refused;
  out_->send(asked);
}

// The peer names the memory whose refusal has ended a rail. It must have been taken back, and have had a key on that
// rail.
void rails_link::explained(place& about, const control& said) noexcept {
  const withdrawn_memory::item* const gone = withdrawn_.find(said.number);
  if (gone == nullptr || !gone->was_on(about.way.number(), said.epoch)) {
    return refuse_peer("an access to memory that was not open to the peer, or not for that");
  }
  if (about.unexplained && about.fence_epoch == said.epoch) about.unexplained.reset();
  note_late(about, said.epoch, *gone);
  if (out_ != nullptr) tell_withdrawn(*out_, gone->handle, gone->at_deadline);
}

// Reports a late access once for each rail that it has ended.
void rails_link::note_late(place& which, std::uint32_t epoch, const withdrawn_memory::item& what) noexcept {
  if (which.explained > epoch) return;
  which.explained = std::uint64_t{epoch} + 1;
  events_->came_late(what.handle, what.at_deadline ? exposure_end::deadline : exposure_end::owner);
}

void rails_link::tell_withdrawn(rail& over, std::uint64_t handle, bool at_deadline) noexcept {
  control said;
  said.kind = control_kind::withdrawn;
  said.number = handle;
  said.at_deadline = at_deadline;
  over.send(said);
}

std::chrono::milliseconds rails_link::time_to_resume() const noexcept {
  const std::chrono::milliseconds given = parameters_.agreed.resumes ? set_up_.how.resume_within : 0ms;
  return lost_by_refusals_ ? std::max(given, time_to_explain) : given;
}

// Repeats all that the peer may have missed with a rail that is over; the peer ignores what it knows already.
void rails_link::tell_peer_of_state() noexcept {
  for (place& each : rails_) {
    if (each.must_fence) fence(each);
    answer_fence(each);
  }
  for (const auto& each : exposed_) {
    if (each == nullptr || each->handle == 0 || !each->is_open()) continue;
    for (std::size_t i = 0; i < rails_.size(); ++i) announce(*each, i);
  }
  finish_sent_ = false;  // defect: forget that the end
}

bool rails_link::awaits_answers() const noexcept {
  return std::any_of(rails_.begin(), rails_.end(), [](const place& each) { return !!each.awaits_answers_until; });
}

void rails_link::all_lost(const error& why) noexcept {
  if (!lost_since_) {
    lost_since_ = home_.now();
    rail_came_.reset();
    lost_why_ = why;
    last_attempt_.reset();
  }
  if (awaits_answers()) return;  // rail_closed() looks again
  const bool may_come = !told_of_end_ && time_to_resume().count() > 0;
  if (!may_come) return end_because(false, suspicion_.value_or(why));
  news_.none_left(time_to_resume());
  ask_for_all();
  arm_watch();
}

void rails_link::fence(place& which) noexcept {
  if (out_ == nullptr || (which.refused_why && which.refused == 0)) return;
  tell_of_refusal(which);
  control ask;
  ask.kind = control_kind::fence;
  ask.rail = which.way.number();
  ask.epoch = which.fence_epoch;
  ask.carried_messages = which.carried_messages;
  out_->send(ask);
}

// Answers once nothing can arrive over the rail any more.
void rails_link::answer_fence(place& which) noexcept {
  if (!which.answer_owed) return;
  if (which.way.epoch() <= which.answer_epoch && which.way.phase() != rail::state::absent) return;
  rail* const target = std::exchange(which.messages_move_to, nullptr);
  const bool may_move = target != nullptr && target->phase() == rail::state::up;
  // defect: go on to receive
  if (may_move && target->epoch() == which.moves_to_epoch && in_ != target) receive_over(target);
  if (out_ == nullptr) return;
  control answer;
  answer.kind = control_kind::fenced;
  answer.rail = which.way.number();
  answer.epoch = which.answer_epoch;
  answer.number = received_;
  out_->send(answer);
}

void rails_link::look_at_fence(place& which) noexcept {
  if (!which.must_fence || !which.peer_received) return;  // defect: go on over another rail
  if (which.way.epoch() == which.fence_epoch && which.way.phase() != rail::state::absent) return;
  which.must_fence = false;
  news_.fenced(which.way);
  which.refused = which.late = 0;
  which.refused_why.reset();
  const bool carried = std::exchange(which.carried_messages, false) && --unresolved_ == 0;
  outgoing_.resume(which.way, carried, most_received_);
  pump();
}

void rails_link::rail_closed(rail& which) noexcept {
  place& its = rails_[which.number()];
  for (const auto& each : exposed_) {
    if (each != nullptr) each->keys[which.number()].is_there = false;  // defect: keep the key of a rail
  }
  its.gone.set();
  if (&which == in_) receive_over(nullptr);  // not earlier: messages that a device had taken may still have arrived
  const bool was_awaited = std::exchange(its.awaits_answers_until, std::nullopt).has_value();
  if (ended_ || !railed_) return;
  if (its.refused_why && its.refused == 0) return end_because(false, *its.refused_why);
  if (was_awaited && out_ == nullptr && lost_since_) all_lost(*lost_why_);
  if (ended_) return;
  const bool has_lasted = its.opened_at && home_.now() - *its.opened_at >= lasting;
  its.opened_at.reset();
  if (has_lasted) its.pauses = new_pauses();
  ask_later(its, has_lasted ? duration::zero() : its.pauses.next());  // defect: never take a rail back
  answer_fence(its);
  look_at_fence(its);
}

void rails_link::rail_opened(rail& which) noexcept {
  which.open();
  place& its = rails_[which.number()];
  its.opened_at = home_.now();
  its.is_suspected = false;
  const bool was_there = its.given_up_at && home_.now() - *its.given_up_at < lasting;
  if (was_there) patience_.moved_after(its.silent_looks);
  its.given_up_at.reset();
  news_.came(which);
  if (lost_since_) news_.goes_on(home_.now() - *lost_since_);
  lost_since_.reset();
  suspicion_.reset();
  lost_by_refusals_ = false;
  rail_came_.set();
  begin_naming(which.number());
  if (out_ == nullptr) choose_message_rail(make_error(errc::peer_vanished));
}

// ---- silence ----

void rails_link::arm_watch() noexcept {
  if (!railed_ || ended_ || (armed() && !is_long_pause_)) return;
  pause_ = watch_period;
  arm_watch_at(home_.now() + watch_period);
}

void rails_link::arm_watch_at(time_point when) noexcept {
  if (armed()) home_.disarm(*this);
  is_long_pause_ = when > home_.now() + watch_period;
  if (!home_.try_arm(*this, when)) fail(make_error(errc::no_memory, "watch the rails"));
}

void rails_link::expired() noexcept {
  const turn outer(*this);
  if (ended_) return;
  if (lost_since_ && !awaits_answers() && home_.now() - *lost_since_ >= time_to_resume()) {  // defect: wait for rails
    return end_because(false, why_none_came());
  }
  for (place& each : rails_) {
    if (each.awaits_answers_until && home_.now() >= *each.awaits_answers_until) each.way.give_up(left_by_peer);
  }
  if (ended_) return;
  for (const place& each : rails_) {
    const bool is_over = each.unexplained && home_.now() - each.unexplained_since >= time_to_explain;
    if (is_over && out_ != nullptr) return end_because(false, *each.unexplained);
  }
  outgoing_.ask_for_arrival();
  give_up_unopened();
  if (ended_) return;
  pause_ = look_for_silence() == rail::sign::none ? std::min(2 * pause_, longest_watch) : watch_period;
  if (ended_) return;
  if (const auto next = next_look()) arm_watch_at(*next);
}

std::optional<time_point> rails_link::next_look() const noexcept {
  std::optional<time_point> next;
  // A deadline that has passed stays until its rail's link has ended.
  const time_point soonest = home_.now() + watch_period;
  const auto look_at = [&](time_point when) {
    next = std::min(next.value_or(time_point::max()), std::max(when, soonest));
  };
  if (lost_since_ && !awaits_answers()) look_at(later(*lost_since_, time_to_resume()));
  for (const place& each : rails_) {
    if (each.awaits_answers_until) look_at(*each.awaits_answers_until);
    if (each.unexplained && out_ != nullptr) look_at(later(each.unexplained_since, time_to_explain));
    if (each.way.is_unopened()) look_at(later(each.began_at, join_timeout));
  }
  if (waits_for_rails()) look_at(home_.now() + pause_);
  return next;
}

error rails_link::why_none_came() const noexcept try {
  const std::string last = last_attempt_ ? fmt::format(" ({})", last_attempt_->what()) : std::string();
  const auto words = fmt::format("no rail has come back within {} ms{}", time_to_resume().count(), last);
  return lost_why_->within(words);
} catch (const std::bad_alloc&) {
  return *lost_why_;
}

// True while something is with a rail, control messages included, or the peer owes an answer.
bool rails_link::waits_for_rails() const noexcept {
  return outgoing_.waits_for_rails() || std::any_of(rails_.begin(), rails_.end(), [](const place& each) {
           return each.way.parts_out() != 0 || each.awaits_fenced();
         });
}

bool rails_link::must_watch() const noexcept {
  if (ended_) return false;
  if (lost_since_ || awaits_answers() || waits_for_rails()) return true;
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const place& each) { return each.way.is_unopened() || each.unexplained; });
}

// A cable may be pulled between the set-up of a link and the first message over it. The link's own time limit is
// longer.
void rails_link::give_up_unopened() noexcept {
  for (place& each : rails_) {
    if (each.way.is_unopened() && home_.now() - each.began_at >= join_timeout) {
      each.way.give_up("the peer has said nothing over this rail since it was set up");
    }
  }
}

// A peer whose program or machine is busy is silent on all rails. So a rail that does not move is given up only while
// another one shows the sign that it lacks: of the program or, if a device alone completes what is in flight, of the
// machine.
rail::sign rails_link::look_for_silence() noexcept {
  std::array<rail::sign, max_rails> signs{};
  rail::sign latest = rail::sign::none;
  bool are_suspects = false;
  patience_.age();
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    place& each = rails_[i];
    if (!each.way.is_open()) continue;
    signs[i] = each.way.last_sign();
    latest = std::max(latest, signs[i]);
    const bool waits = each.way.parts_out() != 0 || outgoing_.awaits_answer(each.way) || awaits_fenced_over(each.way);
    const bool was_suspected = std::exchange(each.is_suspected, waits && signs[i] == rail::sign::none);
    if (was_suspected && signs[i] != rail::sign::none) patience_.moved_after(each.silent_looks);
    if (!was_suspected) each.silent_looks = 0;
    are_suspects = are_suspects || each.is_suspected;
  }
  if (!are_suspects) return latest;
  ask_rails();
  for (place& each : rails_) {
    if (!each.way.is_open() || !each.is_suspected) continue;
    const rail::sign needed = each.way.waits_for_device() ? rail::sign::of_machine : rail::sign::of_program;
    if (latest < needed || ++each.silent_looks < patience_.looks()) continue;
    each.given_up_at = home_.now();
    each.way.give_up("no progress on this rail while another rail made progress");
    break;
  }
  return latest;
}

// Fences are asked for over the message rail. The peer may take its time to close its end of the lost one.
bool rails_link::awaits_fenced_over(const rail& over) const noexcept {
  return &over == out_ &&
         std::any_of(rails_.begin(), rails_.end(), [](const place& each) { return each.awaits_fenced(); });
}

// Asks for answers, so that rails move if they can: also those on which only a slow answer of the peer's is due.
void rails_link::ask_rails() noexcept {
  for (place& each : rails_) {
    if (!each.way.is_open() || each.way.waiting_controls() != 0) continue;
    if (each.is_suspected && each.way.parts_out() != 0) continue;
    control ask;
    ask.kind = control_kind::confirm;
    each.way.send(ask);
  }
}

// ---- exposures ----

// A place in exposed_, reserved while a rail opens the first key: from then on the peer can use the memory, so nothing
// may fail any more. The place itself is chosen only then, so that the peer hears of places in order.
class rails_link::slot_claim {
 public:
  explicit slot_claim(rails_link& of) : of_(of) {
    const std::size_t needed = of.exposed_.size() + of.claimed_ + 1;
    if (needed > of.exposed_.capacity()) of.exposed_.reserve(std::max(needed, 2 * of.exposed_.capacity()));
    of.free_slots_.reserve(of.exposed_.capacity());
    ++of.claimed_;
  }
  slot_claim(const slot_claim&) = delete;
  slot_claim& operator=(const slot_claim&) = delete;
  ~slot_claim() { --of_.claimed_; }

  [[nodiscard]] std::size_t fill(std::unique_ptr<exposed_memory> what) noexcept {
    auto& all = of_.exposed_;
    if (of_.free_slots_.empty()) {
      all.push_back(std::move(what));
      return all.size() - 1;
    }
    const std::uint32_t slot = of_.free_slots_.back();
    of_.free_slots_.pop_back();
    all[slot] = std::move(what);
    return slot;
  }

 private:
  rails_link& of_;
};

// Asks one rail here, and the others in the background once it has given a key. So this task can be destroyed while it
// waits, and no key is open then.
task<exposed_place> rails_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (!railed_) co_return co_await rails_[0].way.carrier()->expose(memory, uses, gate);
  if (ended_) throw error(errc::closed, "expose a buffer");
  const at_work staying(*this);
  const std::uint64_t drawn = random_number() & 0x7fff'ffffu;
  withdrawn_.reserve();
  auto made = std::make_unique<exposed_memory>(*this, memory, uses, gate);
  slot_claim claim(*this);
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const stop_token stop = promise.get_stop_token();
  std::optional<std::size_t> opened = co_await open_first_key(*made);
  while (!opened) {
    // A stop may well be what has ended the rails.
    if (ended_ || rails_shut_) throw error(stop.stop_requested() ? errc::canceled : errc::closed, "expose a buffer");
    if (lost_since_) {
      co_await rail_came_.wait();
    } else {  // a rail has come or gone meanwhile
      co_await yield();
    }
    opened = co_await open_first_key(*made);
  }
  const std::size_t first = *opened;
  exposed_memory& item = *made;
  item.handle = handle_bit | drawn << 32 | claim.fill(std::move(made));
  announce(item, first);
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    if (i != first && rails_[i].way.is_open()) begin_naming(i);
  }
  co_return exposed_place(item.handle, 0);
}

// The rail that has given a key; empty if all of them are lost.
task<std::optional<std::size_t>> rails_link::open_first_key(exposed_memory& what) {
  std::exception_ptr failure;
  std::size_t on = in_ != nullptr ? in_->number() : 0;  // the peer's accesses come over that one
  for (std::size_t i = 0; i < rails_.size(); ++i, on = (on + 1) % rails_.size()) {
    try {
      co_await open_key(what, on);
    } catch (...) {
      if (rails_[on].way.phase() == rail::state::up) failure = std::current_exception();
    }
    if (what.keys[on].is_there) co_return on;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  co_return std::nullopt;
}

// Has one rail give a key, unless it has no link, or has given one already.
task<> rails_link::open_key(exposed_memory& what, std::size_t on) {
  rail& way = rails_[on].way;
  struct inside {
    explicit inside(rail& of) noexcept : of_(of) { of.enter_call(); }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;
    ~inside() { of_.leave_call(); }

   private:
    rail& of_;
  };
  const inside call(way);
  const flag_while opening(what.opening[on]);
  while (way.phase() == rail::state::up && !what.keys[on].is_there) {
    const std::uint32_t epoch = way.epoch();
    std::optional<exposed_place> opened;
    try {
      opened = co_await way.carrier()->expose(what.memory, what.purpose, what.opened_by);
    } catch (const error&) {
      if (way.epoch() == epoch) throw;
    }
    // A link that has ended has shut its keys itself, and the rail may have its next link already.
    if (!opened || way.phase() == rail::state::absent || way.epoch() != epoch) continue;
    what.keys[on] = {.is_there = true, .epoch = epoch, .key = opened->key.number(), .address = opened->address};
  }
}

void rails_link::announce(const exposed_memory& what, std::size_t on) noexcept {
  const rail_key& its = what.keys[on];
  if (!its.is_there || out_ == nullptr) return;
  control said;
  said.kind = control_kind::exposed;
  said.rail = static_cast<std::uint8_t>(on);
  said.epoch = its.epoch;
  said.number = what.handle;
  said.key = its.key;
  said.address = its.address;
  out_->send(said);
}

void rails_link::begin_naming(std::size_t number) noexcept {
  ++naming_;
  begin_task([&] { return expose_over(*this, number); }, "expose memory over a rail");
}

// Opens keys for all exposed memory that has none on this rail yet.
task<> rails_link::expose_over(rails_link& self, std::size_t number) {
  const naming begun(self);
  for (std::size_t i = 0; i < self.exposed_.size() && !self.ended_; ++i) {
    exposed_memory* const item = self.exposed_[i].get();
    if (item == nullptr || item->handle == 0 || !item->is_open()) continue;
    if (item->opening[number] || item->keys[number].is_there) continue;
    try {
      co_await self.open_key(*item, number);
    } catch (const error&) {  // then the peer does not reach the memory over this rail
    }
    if (item->is_open()) {
      self.announce(*item, number);
      continue;
    }
    // It was taken back meanwhile, or given back.
    const rail_owner::turn outer(self);
    rail& way = self.rails_[number].way;
    if (item->keys[number].is_there && way.carrier() != nullptr) item->revoke(number, *way.carrier());
    self.free_if_over(*item);
    self.deliver_held();
  }
}

// A rail with a new link knows nothing of the question.
void rails_link::answer_about_names() noexcept {
  if (naming_ != 0) return;
  for (const question& each : std::exchange(questions_, {})) {
    rail& over = rails_[each.rail].way;
    if (over.epoch() != each.epoch) continue;
    const withdrawn_memory::item* const gone = withdrawn_.find(each.handle);
    if (gone != nullptr) tell_withdrawn(over, gone->handle, gone->at_deadline);
    control answer;
    answer.kind = control_kind::confirmed;
    answer.number = each.number;
    over.send(answer);
  }
}

void rails_link::revoke(const mr::remote_key& key, revocation& who) noexcept {
  const turn outer(*this);
  if (!railed_) return rails_[0].way.carrier()->revoke(key, who);
  exposed_memory& item = *exposed_[key.number() & UINT32_MAX];
  assert(item.handle == key.number() && item.owner == nullptr);
  item.owner = &who;
  if (!item.is_given_back) {
    withdrawn_.add(item.handle, item.keys, who.at_deadline());
    if (out_ != nullptr) tell_withdrawn(*out_, item.handle, who.at_deadline());
  }
  item.pin = who.take_pin();
  close_keys(item);
  if (!item.is_being_opened()) item.pin = {};  // a rail whose worker has to revoke a key holds the region itself
  free_if_over(item);
}

void rails_link::close_keys(exposed_memory& what) noexcept {
  ++what.revoking;  // until all are asked
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    rail& way = rails_[i].way;
    if (what.keys[i].is_there && way.carrier() != nullptr) what.revoke(i, *way.carrier());  // defect: revoke the key
  }
  --what.revoking;
}

void rails_link::key_revoked(exposed_memory& of) noexcept {
  const turn outer(*this);
  free_if_over(of);
  deliver_held();
}

exposed_memory* rails_link::find_exposed(std::uint64_t handle) noexcept {
  const std::size_t slot = handle & UINT32_MAX;
  if (!is_handle(handle) || slot >= exposed_.size()) return nullptr;
  exposed_memory* const found = exposed_[slot].get();
  return found != nullptr && found->handle == handle ? found : nullptr;
}

// Accepted only for memory that is exposed over this connection, and only where the peer's next message follows. The
// peer says it once more if that message was lost with its rail.
void rails_link::give_back(rail& over, std::uint64_t handle) noexcept {
  if (&over != in_ || given_back_ != 0) return refuse_peer("memory given back without a message", violation::other);
  exposed_memory* const item = find_exposed(handle);
  if (item == nullptr && withdrawn_.find(handle) == nullptr) {
    return refuse_peer("the peer gave memory back that is not exposed to it", violation::revoking);
  }
  given_back_ = handle;
  if (item == nullptr) return;  // it was taken back meanwhile
  item->is_given_back = true;
  close_keys(*item);
}

void rails_link::free_if_over(exposed_memory& what) noexcept {
  const auto slot = static_cast<std::uint32_t>(what.handle);
  if (!what.tell_if_over()) return;
  exposed_[slot].reset();
  free_slots_.push_back(slot);
}

// ---- rails that come ----

template <class Make>
void rails_link::begin_task(Make make, const char* name) noexcept try {
  ++tasks_;
  run_in_background(home_, counted(*this, make()), name);
} catch (const std::bad_alloc&) {
  --tasks_;
  fail(make_error(errc::no_memory, "start a task for the rails"));
}

task<> rails_link::counted(rails_link& self, task<> work) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(self.stop_.get_token());
  try {
    co_await std::move(work);
  } catch (const std::exception&) {  // stopped, or out of memory: the rail stays away
  }
  promise.set_stop_token(stop_token());
  const turn outer(self);
  --self.tasks_;
}

// True if the fabric's device is at another NUMA node than the memory of the pool.
bool rails_link::is_far(const transport& way) const noexcept {
  const int memory = set_up_.how.pool != nullptr ? set_up_.how.pool->numa_node() : -1;
  const int device = way.domain().capabilities().numa_node;
  return memory >= 0 && device >= 0 && memory != device;
}

set_up_options rails_link::set_up_of(std::span<const std::byte> private_data) const {
  set_up_options how = set_up_.how;
  how.deadline = later(home_.now(), join_timeout);
  how.private_data = private_data;
  how.source = set_up_.source;
  return how;
}

bool rails_link::may_begin(const place& its, std::uint32_t epoch) const noexcept {
  // defect: let a rail begin
  return !ended_ && !rails_shut_ && its.way.phase() == rail::state::absent && epoch > its.shut_epoch;
}

task<rail_start> rails_link::prepare(rails_link& self) {
  rail_start made;
  mr::pool& pool = *self.set_up_.how.pool;
  const time_point deadline = later(self.home_.now(), join_timeout);
  const std::size_t bytes = self.set_up_.how.receive_bytes;
  auto receives = co_await find_receive_memory(pool, control_receives, bytes, deadline);
  made.receives = make_control_receives(std::move(receives), bytes, self.parameters_.receive_depth);
  auto found = co_await find_receive_memory(pool, 1, rail::control_memory_bytes(), deadline);
  made.control_memory = std::move(found.front());
  made.parameters = self.parameters_;
  co_return made;
}

// Asks for all rails that are absent and not being asked for.
void rails_link::ask_for_all() noexcept {
  for (place& each : rails_) {
    const bool is_absent = !each.joining && each.way.phase() == rail::state::absent;
    if (is_absent) ask_later(each, duration::zero());
  }
}

void rails_link::ask_again(std::size_t number) noexcept {
  const turn outer(*this);
  place& its = rails_[number];
  if (ended_ || rails_shut_ || its.joining || its.way.phase() != rail::state::absent) return;
  its.joining = true;
  begin_task([&] { return try_rail(*this, number); }, "ask for a rail");
}

void rails_link::ask_later(place& which, duration pause) noexcept {
  if (ended_ || rails_shut_ || !set_up_.connects || which.again.armed()) return;
  if (!home_.try_arm(which.again, home_.now() + pause)) fail(make_error(errc::no_memory, "ask for a rail"));
}

void rails_link::ask_no_more() noexcept {
  for (place& each : rails_) {
    if (each.again.armed()) home_.disarm(each.again);
  }
}

task<> rails_link::try_rail(rails_link& self, std::size_t number) {
  place& its = self.rails_[number];
  const flag_while joining(its.joining);
  bool has_joined = false;
  try {
    has_joined = co_await ask_for_rail(self, number);
  } catch (const std::bad_alloc&) {  // there may be memory the next time
  }
  if (has_joined) {
    its.pauses = self.new_pauses();
  } else {
    self.ask_later(its, its.pauses.next());
  }
}

task<bool> rails_link::ask_for_rail(rails_link& self, std::size_t number) {
  place& its = self.rails_[number];
  const rail_route& route = self.set_up_.routes[number];
  join asked;
  asked.rail = static_cast<std::uint8_t>(number);
  asked.fabric = static_cast<std::uint8_t>(route.way->domain().fabric());
  asked.epoch = its.asked_epoch = std::max(its.asked_epoch, its.way.epoch()) + 1;
  asked.id = self.set_up_.id;
  asked.landing = route.way->landing();
  const auto words = asked.pack();
  std::optional<error> failure;
  try {
    rail_start how = co_await prepare(self);
    const set_up_options set_up = self.set_up_of(words);
    new_link made = co_await route.way->connect(route.address, set_up);
    const auto answer = join::unpack(made.peer_private_data);
    if (!answer || answer->rail != number)
      throw error(errc::protocol_error, "the peer's answer to a joining rail is malformed");
    if (!self.may_begin(its, asked.epoch)) co_return false;
    if (!can_do(made.link->properties(), self.capabilities_)) {
      throw error(errc::not_supported,
                  "this rail allows fewer scatter/gather elements than the first rail, or no reads");
    }
    how.carrier = std::move(made.link);
    how.fabric = route.way->name();
    how.is_far = self.is_far(*route.way);
    how.epoch = asked.epoch;
    how.peer_fabric = answer->fabric;
    how.parameters.landing = answer->landing;
    const turn outer(self);
    its.way.begin(std::move(how));
    its.began_at = self.home_.now();
    its.way.post_control_receives();
    its.way.knock();
    self.pump();
  } catch (const error& why) {
    if (why.code() == errc::canceled) throw;
    failure = why;
    its.way.health().note_why(why.what());
    self.news_.refused(its.way);
  }
  if (!failure) co_return its.way.phase() == rail::state::up;
  if (self.out_ == nullptr && self.lost_since_ && !self.awaits_answers()) self.not_joined(route, *failure);
  co_return false;
}

void rails_link::tell_addresses() noexcept try {
  for (std::size_t i = 0; i < set_up_.own_addresses.size(); ++i) {
    const auto said = tell_address(set_up_.own_addresses[i], i);
    if (said && rails_[0].way.phase() == rail::state::up) rails_[0].way.send(*said);
  }
} catch (const std::bad_alloc&) {
  fail(make_error(errc::no_memory, "tell the peer where else this end listens"));
}

// The user has named one address, and rail k of one end belongs to rail k of the other. So the peer's addresses are
// used in order, beginning with the one of the first rail.
void rails_link::use_told_addresses() noexcept try {
  if (!set_up_.learns_addresses || told_.empty()) return;
  const auto first = std::find(told_.begin(), told_.end(), peer_);
  const auto offset = static_cast<std::size_t>(first != told_.end() ? first - told_.begin() : 0);
  for (std::size_t i = 1; i < set_up_.routes.size(); ++i) {
    rail_route& route = set_up_.routes[i];
    const std::string& other = told_[(offset + i) % told_.size()];
    if (!other.empty() && route.way->understands(other)) route.address = other;
  }
} catch (const std::bad_alloc&) {
  fail(make_error(errc::no_memory, "store the addresses of the peer"));
}

// Called while no rail is there. A program that answers at the peer's address, and knows nothing of this connection, is
// not the peer.
void rails_link::not_joined(const rail_route& over, const error& why) {
  const turn outer(*this);
  const std::string where = fmt::format("resume the connection at {} over {}", over.address, over.way->name());
  last_attempt_ = why.within(where);
  if (why.code() == errc::peer_restarted) fail(error(errc::peer_restarted, where));
  if (why.code() == errc::protocol_error) fail(last_attempt_->within("another program answers for the peer"));
}

void rails_link::join_asked(const join& said, std::unique_ptr<link_request> request) noexcept {
  const turn outer(*this);
  if (ended_ || rails_shut_ || said.rail >= rails_.size()) return;  // destroying the request rejects it
  begin_task([&] { return admit(*this, said, std::move(request)); }, "admit a rail");
}

task<> rails_link::admit(rails_link& self, join said, std::unique_ptr<link_request> request) {
  place& its = self.rails_[said.rail];
  if (its.joining || said.epoch <= std::max(its.way.epoch(), its.shut_epoch)) co_return;
  const flag_while joining(its.joining);
  while (its.way.phase() != rail::state::absent) {  // the peer has lost it, and this end has not noticed
    its.way.give_up("the peer asks for this rail anew");
    if (its.way.phase() == rail::state::absent) break;
    its.gone.reset();
    co_await its.gone.wait();
  }
  if (self.ended_) co_return;
  rail_start how = co_await prepare(self);
  const rail_route& route = self.set_up_.routes[said.rail];
  transport& way = request->fabric < self.set_up_.ways.size() ? *self.set_up_.ways[request->fabric] : *route.way;
  join answer;
  answer.rail = said.rail;
  answer.fabric = static_cast<std::uint8_t>(way.domain().fabric());
  answer.epoch = said.epoch;
  answer.landing = way.landing();
  const auto words = answer.pack();
  set_up_options set_up = self.set_up_of(words);
  set_up.first_receives = how.receives;  // the peer speaks first, and at once
  how.carrier = co_await request->accept(set_up);
  if (!self.may_begin(its, said.epoch)) co_return;
  if (!can_do(how.carrier->properties(), self.capabilities_)) co_return;
  how.fabric = way.name();
  how.is_far = self.is_far(way);
  how.epoch = said.epoch;
  how.peer_fabric = said.fabric;
  how.parameters.landing = said.landing;
  const turn outer(self);
  its.way.begin(std::move(how));
  its.began_at = self.home_.now();
  its.way.post_control_receives();
  self.pump();
}

// ---- the end ----

void rails_link::shut_down() noexcept {
  const turn outer(*this);
  shutting_down_ = true;
  pump();
}

void rails_link::peer_finished() noexcept {
  if (!railed_ && rails_[0].way.carrier() != nullptr) rails_[0].way.carrier()->peer_finished();
}

// Sends `finish` behind everything that was posted, and shuts the rails down once the peer has sent it, too.
void rails_link::try_finish() noexcept {
  if (!shutting_down_ || closed_) return;
  if (!outgoing_.empty()) return outgoing_.ask_for_arrival();
  if (!railed_) {
    if (!std::exchange(rails_shut_, true)) rails_[0].way.shut_down();
    return;
  }
  if (!finish_sent_ && message_rail() != nullptr && !rails_shut_) {
    finish_sent_ = true;
    control last;
    last.kind = control_kind::finish;
    out_->send(last);
  }
  if (finish_sent_ && peer_has_finished_ && !std::exchange(rails_shut_, true)) {
    stop_.request_stop();
    ask_no_more();
    news_.stop();
    for (place& each : rails_) each.gone.set();
    for (place& each : rails_) each.way.shut_down();
  }
}

void rails_link::abort(std::string_view why) noexcept {
  if (closed_) return;
  const turn outer(*this);
  end_because(false, make_error(errc::closed, why));
  for (place& each : rails_) each.way.give_up(why);
  close_rails();
}

void rails_link::refuse(violation what, std::string_view why) noexcept {
  if (!closed_) break_off(what, make_error(errc::protocol_error, why), why);
}

// Each rail that can tells the peer the reason.
void rails_link::break_off(violation what, const error& why, std::string_view words) noexcept {
  const turn outer(*this);
  if (ended_) return;
  ended_ = true;
  if (!std::exchange(told_of_end_, true)) events_->ended(false, why);
  for (place& each : rails_) {
    if (each.way.phase() == rail::state::up) each.way.carrier()->refuse(what, words);
  }
  close_rails();
}

void rails_link::fail(const error& why) noexcept {
  const turn outer(*this);
  if (ended_) return;
  end_because(false, why);
}

// `orderly`: the peer sends no more, and this end still may.
void rails_link::end_because(bool orderly, const error& why) noexcept {
  if (told_of_end_) {
    if (!orderly) close_rails();
    return;
  }
  told_of_end_ = true;
  if (!orderly) ended_ = true;
  // A peer that was asked whether it has taken its memory back, and ends the connection, has answered.
  const auto refused =
      std::find_if(rails_.begin(), rails_.end(), [](const place& each) { return each.refused_why.has_value(); });
  const error& reason = !orderly && refused != rails_.end() ? *refused->refused_why : why;
  if (!orderly && railed_) news_.ended(reason, lost_since_.has_value() && time_to_resume().count() > 0);
  events_->ended(orderly, reason);
  if (orderly && !railed_) ended_ = true;
  if (!orderly) close_rails();
}

void rails_link::close_rails() noexcept {
  ended_ = true;
  stop_.request_stop();
  rail_came_.set();
  ask_no_more();
  news_.stop();
  set_up_.registered.reset();
  for (place& each : rails_) {  // one that is ending may still have something to tell the peer
    if (each.way.phase() == rail::state::up) each.way.give_up("the connection has ended");
    each.gone.set();
  }
  outgoing_.end();
}

// Completes the link's end, once nothing of it is in progress.
void rails_link::settle() noexcept {
  if (closed_ || events_ == nullptr) return;
  ++depth_;
  if (ended_) outgoing_.end();
  const bool all_gone = std::all_of(rails_.begin(), rails_.end(),
                                    [](const place& each) { return each.way.phase() == rail::state::absent; });
  const bool over = told_of_end_ && all_gone && (ended_ || rails_shut_) && tasks_ == 0 && outgoing_.empty();
  if (over && !closed_) {
    closed_ = true;
    if (armed()) home_.disarm(*this);
    set_up_.registered.reset();
    for (place& each : rails_) registry_->rails.remove(each.way.health());
    receive_over(nullptr);
    for (const held_message& each : std::exchange(held_messages_, {})) idle_.push_back(each.work);
    for (receive_work* each : std::exchange(idle_, {})) events_->receive_flushed(*each);
  }
  --depth_;
  if (closed_) events_->closed();
}

}  // namespace weft::net::rails

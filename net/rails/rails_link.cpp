// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/net/connection/receive_memory.hpp>
#include <weft/net/rails/rails_link.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/io/system_calls.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace weft::net::rails {

using weft::detail::make_error;

namespace {

using namespace std::chrono_literals;

// Rails are looked at so often while something is on the way. One that does not move for three looks in a row, while
// another one does, is given up: sooner than 100 ms after it has fallen silent.
constexpr duration watch_period = 25ms;
constexpr unsigned last_silent_tick = 3;
constexpr duration join_timeout = 2s;
// A peer asks once over each rail, and again when it has lost one.
constexpr std::size_t most_questions = std::size_t{4} * max_rails;

// The peer has broken the rules, or was refused what it is not allowed: no other rail mends that.
bool is_final(const error& why) noexcept {
  return why.code() == errc::remote_access || why.code() == errc::protocol_error || why.code() == errc::not_receiving ||
         why.code() == errc::message_too_large || why.code() == errc::connection_failed;
}

void draw(system_calls& calls, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = calls.getrandom(into.data(), into.size(), 0);
    if (got < 0 && got != -EINTR) throw system_error(static_cast<int>(-got), "getrandom");
    if (got > 0) into = into.subspan(static_cast<std::size_t>(got));
  }
}

// True while it lives.
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

// What keeps the link there beside its rails.
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

// A task that asks a rail for keys, counted when it was begun.
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

bool registry::deliver(const std::shared_ptr<registry>& self, const join& said,
                       std::unique_ptr<link_request>& request) {
  const std::lock_guard lock(self->mutex_);
  const auto found = self->all_.find(said.id);
  if (found == self->all_.end()) return false;
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
  return true;
}

// ---- beginning ----

rails_link::rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how)
    : home_(*executor_core::current()),
      registry_(std::move(all)),
      set_up_(std::move(how)),
      capabilities_(first->properties()),
      peer_(first->peer()),
      first_(std::move(first)) {
  capabilities_.invalidate = false;
  for (std::size_t i = 0; i < set_up_.routes.size(); ++i) rails_.emplace_back(*this, static_cast<std::uint8_t>(i));
}

rails_link::~rails_link() {
  assert((closed_ || events_ == nullptr) && "a link of several rails was destroyed before it was closed");
}

void rails_link::start(link_events& events, const link_parameters& parameters) {
  parameters_ = parameters;
  railed_ = parameters.agreed.rails && parameters.native;
  first_receives_ = parameters.receive_depth;
  held_.reserve(parameters.receive_depth);
  idle_.reserve(parameters.receive_depth);
  if (railed_ && !set_up_.connects) {
    draw(home_.calls(), id_);
    registry_->add(id_, *this);
    registered_ = true;
  }
  if (!railed_) set_up_.receives.clear();
  if (railed_) {
    outgoing_.begin(std::move(set_up_.kept_memory), std::max(parameters.send_depth, parameters.receive_depth));
  }
  events_ = &events;
  const turn outer(*this);
  try {
    rails_[0].way.begin({.carrier = std::move(first_),
                         .parameters = parameters,
                         .receives = std::move(set_up_.receives),
                         .control_memory = std::move(set_up_.control_memory),
                         .is_open = true});
  } catch (...) {
    if (std::exchange(registered_, false)) registry_->remove(id_);
    events_ = nullptr;
    throw;
  }
  out_ = in_ = &rails_[0].way;
  const link& carrier = *out_->carrier();
  capabilities_.max_whole_write_bytes = carrier.properties().max_whole_write_bytes;
}

// After the connection has posted its receives.
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
  if (!ended_ && outgoing_.waits_for_rails()) arm_watch();
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

void rails_link::request_completed(work_request& work, work_status status) noexcept {
  events_->completed(work, status);
}

void rails_link::part_ended(rail& over, part& item, work_status status) noexcept {
  outgoing_.part_ended(over, item, status);
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

// With the rail they come over, as many are held back as it has receives of its own: what lands in one of those is
// copied into one of these. A receive behind as many of the rail's own is only posted once that many are held.
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
  events_->received(work, what);
}

void rails_link::receive_over(rail* over) noexcept {
  in_ = over;
  idle_.insert(idle_.end(), held_.begin(), held_.end());
  held_.clear();
  if (in_ == nullptr) return;
  std::vector<receive_work*> all = std::exchange(idle_, {});
  idle_.reserve(all.size());
  for (receive_work* each : all) take_back(*in_, *each);
  if (in_ != nullptr && in_->carrier() != nullptr) in_->carrier()->ring();
}

// ---- what the peer says about rails ----

void rails_link::controlled(rail& over, const control& said) noexcept {
  place& its = rails_[over.number()];
  place* const about = said.rail < rails_.size() ? &rails_[said.rail] : nullptr;
  switch (said.kind) {
    case control_kind::hello:
      if (over.number() != 0 || over.epoch() != 0) return refuse_peer("a greeting on the wrong rail");
      if (set_up_.connects) {
        if (id_ != connection_id{}) return refuse_peer("a second greeting");
        id_ = said.id;
        for (std::size_t i = 0; i < rails_.size(); ++i) ask_again(i);
      } else {
        control hello;
        hello.kind = control_kind::hello;
        hello.id = id_;
        over.send(hello);
      }
      break;
    case control_kind::welcome:
      if (!over.is_open()) rail_opened(over);
      break;
    case control_kind::credits:
      if (!set_up_.connects && !over.is_open()) {  // the first on a rail that has joined
        control welcome;
        welcome.kind = control_kind::welcome;
        over.send(welcome);
        rail_opened(over);
      }
      break;
    case control_kind::fence:
      if (about == nullptr || said.epoch > about->way.epoch())
        return refuse_peer("a fence for a rail that there is not");
      about->answer_owed = true;
      about->answer_epoch = said.epoch;
      if (said.carried_messages) {
        about->messages_move_to = &over;
        about->moves_to_epoch = over.epoch();
      }
      if (about->way.epoch() == said.epoch) about->way.give_up("the peer has given this rail up");
      answer_fence(*about);
      break;
    case control_kind::fenced:
      if (about == nullptr || !about->must_fence || said.epoch != about->fence_epoch) break;  // said again
      if (said.number > outgoing_.messages()) return refuse_peer("more messages received than were sent");
      about->peer_received = said.number;
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
        questions_.push_back({.number = said.number, .rail = over.number(), .epoch = over.epoch()});
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "a question of the peer's"));
      }
      answer_about_names();
      break;
    case control_kind::confirmed:
      outgoing_.confirmed(over, said.number);
      break;
    case control_kind::exposed:
      try {
        if (!peers_.learn(said)) return refuse_peer("memory exposed under a handle that cannot be");
      } catch (const std::bad_alloc&) {
        return fail(make_error(errc::no_memory, "what the peer has exposed"));
      }
      break;
    case control_kind::finish:
      if (std::exchange(peer_has_finished_, true)) break;
      end_because(true, make_error(errc::peer_closed, "the peer closed the connection"));
      break;
  }
  its.silent_ticks = 0;
  pump();
}

void rails_link::refuse_peer(const char* why) noexcept {
  const error reason = make_error(errc::protocol_error, why);
  if (rails_[0].way.carrier() != nullptr && !railed_) rails_[0].way.carrier()->refuse(violation::other, why);
  fail(reason);
}

// ---- a rail that ends ----

void rails_link::rail_ended(rail& which, bool orderly, const error& why) noexcept {
  place& its = rails_[which.number()];
  if (!railed_) return end_because(orderly, why);
  if (rails_shut_) return;
  if (&which == in_) receive_over(nullptr);
  const bool carried_messages = &which == out_;
  if (carried_messages) out_ = nullptr;
  if (ended_) return;
  if (!orderly && is_final(why)) return end_because(false, why);
  which.give_up("the peer has ended this rail");
  its.must_fence = true;
  its.fence_epoch = which.epoch();
  its.peer_received.reset();
  outgoing_.rail_lost(which, carried_messages);
  if (carried_messages && !std::exchange(its.carried_messages, true)) ++unresolved_;
  if (out_ == nullptr) return choose_message_rail(why);
  fence(its);
}

void rails_link::choose_message_rail(const error& why) noexcept {
  const auto open = std::find_if(rails_.begin(), rails_.end(), [](const place& each) { return each.way.is_open(); });
  if (open == rails_.end()) return all_lost(why);
  out_ = &open->way;
  lost_since_.reset();
  tell_peer_of_state();
}

// All that the peer may have missed with a rail that is over; it knows what it has heard before.
void rails_link::tell_peer_of_state() noexcept {
  for (place& each : rails_) {
    if (each.must_fence) fence(each);
    answer_fence(each);
  }
  for (const auto& each : exposed_) {
    if (each == nullptr || each->handle == 0 || each->owner != nullptr) continue;
    for (std::size_t i = 0; i < rails_.size(); ++i) announce(*each, i);
  }
  finish_sent_ = false;
}

void rails_link::all_lost(const error& why) noexcept {
  if (!lost_since_) {
    lost_since_ = home_.now();
    rail_came_.reset();
    lost_why_ = why;
  }
  const bool may_come = !told_of_end_ && set_up_.how.resume_within.count() > 0 && id_ != connection_id{};
  if (!may_come) return end_because(false, why);
  arm_watch();
}

void rails_link::fence(place& which) noexcept {
  if (out_ == nullptr) return;
  control ask;
  ask.kind = control_kind::fence;
  ask.rail = which.way.number();
  ask.epoch = which.fence_epoch;
  ask.carried_messages = which.carried_messages;
  out_->send(ask);
}

// Once nothing can come over it any more.
void rails_link::answer_fence(place& which) noexcept {
  if (!which.answer_owed) return;
  if (which.way.epoch() == which.answer_epoch && which.way.phase() != rail::state::absent) return;
  rail* const target = std::exchange(which.messages_move_to, nullptr);
  const bool may_move = target != nullptr && target->phase() == rail::state::up;
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
  if (!which.must_fence || !which.peer_received) return;
  if (which.way.epoch() == which.fence_epoch && which.way.phase() != rail::state::absent) return;
  which.must_fence = false;
  const bool carried = std::exchange(which.carried_messages, false) && --unresolved_ == 0;
  outgoing_.resume(which.way, carried, *which.peer_received);
  pump();
}

void rails_link::rail_closed(rail& which) noexcept {
  place& its = rails_[which.number()];
  for (const auto& each : exposed_) {
    if (each != nullptr) each->keys[which.number()].is_there = false;
  }
  its.gone.set();
  if (ended_ || !railed_) return;
  ask_later(its, duration::zero());
  answer_fence(its);
  look_at_fence(its);
}

void rails_link::rail_opened(rail& which) noexcept {
  which.open();
  lost_since_.reset();
  rail_came_.set();
  begin_naming(which.number());
  if (out_ == nullptr) choose_message_rail(make_error(errc::peer_vanished));
}

// ---- silence ----

void rails_link::arm_watch() noexcept {
  if (!railed_ || ended_ || armed()) return;
  if (!home_.try_arm(*this, home_.now() + watch_period)) fail(make_error(errc::no_memory, "watch the rails"));
}

void rails_link::expired() noexcept {
  const turn outer(*this);
  if (ended_) return;
  if (lost_since_ && home_.now() - *lost_since_ >= set_up_.how.resume_within) {
    const auto words = fmt::format("no rail has come back within {} ms", set_up_.how.resume_within.count());
    return end_because(false, lost_why_->within(words));
  }
  outgoing_.ask_for_arrival();
  look_for_silence();
  if (!ended_ && (lost_since_ || outgoing_.waits_for_rails())) arm_watch();
}

// A peer whose program is busy is silent on all rails: one that does not move is given up only while another does.
void rails_link::look_for_silence() noexcept {
  std::size_t open = 0;
  for (const place& each : rails_) open += each.way.is_open() ? 1U : 0U;
  if (open < 2) return;
  place* silent = nullptr;
  bool others_move = false;
  for (place& each : rails_) {
    if (!each.way.is_open()) continue;
    const bool moved = std::exchange(each.progress_seen, each.way.progress()) != each.way.progress();
    if (moved || (each.way.parts_out() == 0 && !outgoing_.awaits_answer(each.way))) {
      each.silent_ticks = 0;
      others_move = others_move || moved;
      continue;
    }
    if (++each.silent_ticks >= last_silent_tick) silent = &each;
  }
  const bool suspects =
      std::any_of(rails_.begin(), rails_.end(), [](const place& each) { return each.silent_ticks != 0; });
  if (suspects) {  // the others are asked, so that they move if they can
    for (place& each : rails_) {
      if (!each.way.is_open() || each.silent_ticks != 0) continue;
      control ask;
      ask.kind = control_kind::confirm;
      each.way.send(ask);
    }
  }
  if (silent != nullptr && others_move) silent->way.give_up("the rail has moved nothing while another did");
}

// ---- exposures ----

// A place in the table, held while a rail opens the first key: the peer can use the memory from then on, so nothing may
// fail behind it. Which place is only known then, because the peer hears of them one after another.
class rails_link::slot_claim {
 public:
  explicit slot_claim(rails_link& of) : of_(of) {
    const std::size_t needed = of.exposed_.size() + of.claimed_ + 1;
    if (needed > of.exposed_.capacity()) of.exposed_.reserve(std::max(needed, 2 * of.exposed_.capacity()));
    ++of.claimed_;
  }
  slot_claim(const slot_claim&) = delete;
  slot_claim& operator=(const slot_claim&) = delete;
  ~slot_claim() { --of_.claimed_; }

  [[nodiscard]] std::size_t fill(std::unique_ptr<exposed_memory> what) noexcept {
    auto& all = of_.exposed_;
    const auto unused = std::find(all.begin(), all.end(), nullptr);
    const auto slot = static_cast<std::size_t>(unused - all.begin());
    if (unused == all.end()) {
      all.push_back(std::move(what));
    } else {
      *unused = std::move(what);
    }
    return slot;
  }

 private:
  rails_link& of_;
};

// One rail is asked here, and the others in the background once it has given a key: so this can be destroyed while it
// waits, and no key is open then.
task<exposed_place> rails_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (!railed_) co_return co_await rails_[0].way.carrier()->expose(memory, uses, gate);
  if (ended_) throw error(errc::closed, "expose a buffer");
  const at_work staying(*this);
  const std::uint64_t drawn = random_number() & 0x7fff'ffffu;
  auto made = std::make_unique<exposed_memory>(*this, memory, uses, gate);
  slot_claim claim(*this);
  std::optional<std::size_t> opened = co_await open_first_key(*made);
  while (!opened) {
    if (ended_ || !lost_since_) throw error(errc::closed, "expose a buffer");
    co_await rail_came_.wait();
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

// Which rail has given it; none if all of them are lost.
task<std::optional<std::size_t>> rails_link::open_first_key(exposed_memory& what) {
  std::exception_ptr failure;
  std::size_t on = in_ != nullptr ? in_->number() : 0;  // what the peer does with it comes over that one
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
    // A link that has ended has shut its keys itself, and the next may be there already.
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
  begin_task(expose_over(*this, number), "expose memory over a rail");
}

// What this rail has no key for yet.
task<> rails_link::expose_over(rails_link& self, std::size_t number) {
  const naming begun(self);
  for (std::size_t i = 0; i < self.exposed_.size() && !self.ended_; ++i) {
    exposed_memory* const item = self.exposed_[i].get();
    if (item == nullptr || item->handle == 0 || item->owner != nullptr) continue;
    if (item->opening[number] || item->keys[number].is_there) continue;
    try {
      co_await self.open_key(*item, number);
    } catch (const error&) {  // then this rail does not carry it
    }
    if (item->owner == nullptr) {
      self.announce(*item, number);
      continue;
    }
    // It was taken back meanwhile.
    const rail_owner::turn outer(self);
    rail& way = self.rails_[number].way;
    if (item->keys[number].is_there && way.carrier() != nullptr) item->revoke(number, *way.carrier());
    self.free_if_over(*item);
  }
}

// A rail that is new meanwhile has heard nothing of the question.
void rails_link::answer_about_names() noexcept {
  if (naming_ != 0) return;
  for (const question& each : std::exchange(questions_, {})) {
    rail& over = rails_[each.rail].way;
    if (over.epoch() != each.epoch) continue;
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
  ++item.revoking;  // until all are asked
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    rail& way = rails_[i].way;
    if (item.keys[i].is_there && way.carrier() != nullptr) item.revoke(i, *way.carrier());
  }
  --item.revoking;
  free_if_over(item);
}

void rails_link::key_revoked(exposed_memory& of) noexcept {
  const turn outer(*this);
  free_if_over(of);
}

void rails_link::free_if_over(exposed_memory& what) noexcept {
  const std::size_t slot = what.handle & UINT32_MAX;
  if (what.tell_if_over()) exposed_[slot].reset();
}

// ---- rails that come ----

void rails_link::begin_task(task<> work, const char* name) noexcept try {
  ++tasks_;
  run_in_background(home_, counted(*this, std::move(work)), name);
} catch (const std::bad_alloc&) {
  --tasks_;
  fail(make_error(errc::no_memory, "look after the rails"));
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

set_up_options rails_link::set_up_of(std::span<const std::byte> private_data) const {
  set_up_options how = set_up_.how;
  how.deadline = later(home_.now(), join_timeout);
  how.private_data = private_data;
  return how;
}

task<rail_start> rails_link::prepare(rails_link& self) {
  rail_start made;
  mr::pool& pool = *self.set_up_.how.pool;
  const time_point deadline = later(self.home_.now(), join_timeout);
  made.receives = co_await find_receive_memory(pool, control_receives, self.set_up_.how.receive_bytes, deadline);
  auto found = co_await find_receive_memory(pool, 1, rail::control_memory_bytes(), deadline);
  made.control_memory = std::move(found.front());
  made.parameters = self.parameters_;
  co_return made;
}

void rails_link::ask_again(std::size_t number) noexcept {
  const turn outer(*this);
  place& its = rails_[number];
  if (ended_ || rails_shut_ || its.joining || its.way.phase() != rail::state::absent) return;
  its.joining = true;
  begin_task(try_rail(*this, number), "ask for a rail");
}

void rails_link::ask_later(place& which, duration pause) noexcept {
  if (ended_ || rails_shut_ || !set_up_.connects || id_ == connection_id{} || which.again.armed()) return;
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
  if (co_await ask_for_rail(self, number)) {
    its.pauses = back_off(first_pauses);
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
  asked.epoch = its.way.epoch() + 1;
  asked.id = self.id_;
  const auto words = asked.pack();
  bool refused = false;
  try {
    rail_start how = co_await prepare(self);
    const set_up_options set_up = self.set_up_of(words);
    new_link made = co_await route.way->connect(route.address, set_up);
    const auto answer = join::unpack(made.peer_private_data);
    if (!answer || answer->rail != number) throw error(errc::protocol_error, "the peer has answered for another rail");
    if (self.ended_ || self.rails_shut_ || its.way.phase() != rail::state::absent) co_return false;
    how.carrier = std::move(made.link);
    how.epoch = asked.epoch;
    how.peer_fabric = answer->fabric;
    const turn outer(self);
    its.way.begin(std::move(how));
    its.way.post_control_receives();
    its.way.knock();
  } catch (const error& why) {
    if (why.code() == errc::canceled) throw;
    refused = why.code() == errc::peer_restarted;
  }
  if (!refused) co_return its.way.phase() == rail::state::up;
  // Without a rail, nobody but a new process can be there that knows nothing of us.
  if (self.out_ == nullptr && self.lost_since_) {
    const turn outer(self);
    self.fail(error(errc::peer_restarted));
  }
  co_return false;
}

void rails_link::join_asked(const join& said, std::unique_ptr<link_request> request) noexcept {
  const turn outer(*this);
  if (ended_ || rails_shut_ || said.rail >= rails_.size()) return;  // and the request with it: rejected
  begin_task(admit(*this, said, std::move(request)), "admit a rail");
}

task<> rails_link::admit(rails_link& self, join said, std::unique_ptr<link_request> request) {
  place& its = self.rails_[said.rail];
  if (its.joining || said.epoch <= its.way.epoch()) co_return;
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
  const auto words = answer.pack();
  const set_up_options set_up = self.set_up_of(words);
  how.carrier = co_await request->accept(set_up);
  if (self.ended_ || self.rails_shut_ || its.way.phase() != rail::state::absent) co_return;
  how.epoch = said.epoch;
  how.peer_fabric = said.fabric;
  const turn outer(self);
  its.way.begin(std::move(how));
  its.way.post_control_receives();
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

// Behind everything that was posted.
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
  if (closed_) return;
  const turn outer(*this);
  for (place& each : rails_) {
    if (each.way.phase() == rail::state::up) each.way.carrier()->refuse(what, why);
  }
  end_because(false, make_error(errc::protocol_error, why));
  close_rails();
}

void rails_link::fail(const error& why) noexcept {
  const turn outer(*this);
  if (ended_) return;
  end_because(false, why);
}

// In order: the peer sends no more, and this end still may.
void rails_link::end_because(bool orderly, const error& why) noexcept {
  if (told_of_end_) {
    if (!orderly) close_rails();
    return;
  }
  told_of_end_ = true;
  if (!orderly) ended_ = true;
  events_->ended(orderly, why);
  if (orderly && !railed_) ended_ = true;
  if (!orderly) close_rails();
}

void rails_link::close_rails() noexcept {
  ended_ = true;
  stop_.request_stop();
  rail_came_.set();
  ask_no_more();
  if (std::exchange(registered_, false)) registry_->remove(id_);
  for (place& each : rails_) {  // one that ends may have something to tell the peer
    if (each.way.phase() == rail::state::up) each.way.give_up("the connection has ended");
    each.gone.set();
  }
  outgoing_.end();
}

// What has become of the end, once nothing of this link is under way.
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
    if (std::exchange(registered_, false)) registry_->remove(id_);
    receive_over(nullptr);
    for (receive_work* each : std::exchange(idle_, {})) events_->receive_flushed(*each);
  }
  --depth_;
  if (closed_) events_->closed();
}

}  // namespace weft::net::rails

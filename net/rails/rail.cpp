// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/rails/rail.hpp>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <new>
#include <utility>

namespace weft::net::rails {
namespace {

// The most control messages other than `credits` that were sent and that the peer has not confirmed.
constexpr std::uint32_t most_unconfirmed = 4;
constexpr duration rate_window = std::chrono::microseconds(200);
// After this time a rate counts as unknown, so that a rail that was slow for a moment is tried again.
constexpr duration rate_memory = std::chrono::milliseconds(100);

// True if the completion of such a request proves, on every fabric, that the peer has answered.
bool is_query(work_kind kind) noexcept {
  return kind == work_kind::read || kind == work_kind::fetch_add || kind == work_kind::compare_swap;
}

}  // namespace

std::shared_ptr<own_receives> make_control_receives(std::vector<mr::buffer> memory, std::size_t bytes,
                                                    std::size_t of_connection) {
  auto made = std::make_shared<own_receives>();
  made->slots.resize(memory.size());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    receive_slot& slot = made->slots[i];
    slot.work.slot = static_cast<std::uint16_t>(of_connection + i);
    slot.memory = std::move(memory[i]);
    slot.prepare(bytes);
  }
  return made;
}

rail::~rail() { assert(state_ == state::absent && "a rail was destroyed while its link may use memory"); }

// ---- beginning ----

void rail::begin(rail_start&& how) {
  assert(state_ == state::absent && carrier_ == nullptr);
  link_parameters its = how.parameters;
  its.in_place = false;  // received() reads each message in its receive
  first_own_receive_ = its.receive_depth;
  const std::size_t own = how.receives != nullptr ? how.receives->slots.size() : 0;
  its.receive_depth = static_cast<std::uint16_t>(its.receive_depth + own);
  its.send_depth = static_cast<std::uint16_t>(its.send_depth + control_parts);
  its.delivers_after_end = owner_.is_railed();  // mutant: lose what a device has taken
  finished_.reserve(finished_.size() + 1);
  waiting_.clear();
  sent_ = confirmed_ = received_ = told_ = 0;
  bytes_out_ = parts_out_ = large_parts_out_ = 0;
  bytes_measured_ = 0;
  busy_ = {};
  rate_ = 0;
  answered_ = heard_ = is_to_shut_down_ = false;
  taken_ = 0;
  control_memory_ = std::move(how.control_memory);
  receives_ = std::move(how.receives);
  assert(receives_ == nullptr || receives_->slots.front().work.slot == first_own_receive_);
  epoch_ = how.epoch;
  peer_fabric_ = how.peer_fabric;
  is_open_ = how.is_open;
  is_far_ = how.is_far;
  // All that may fail comes first, because a link that has started must not be destroyed before it has closed.
  parts_ = std::vector<part>(its.send_depth);
  corners_.reset();
  corners_.reset(static_cast<std::byte*>(
      ::operator new(its.send_depth* stride_of(*how.carrier), std::align_val_t{corner_alignment})));
  how.carrier->start(*this, its);
  carrier_ = std::move(how.carrier);
  health_.goes(how.fabric, carrier_->peer());
  becomes(state::up);
  furnish_parts();
}

void rail::open() noexcept {
  is_open_ = true;
  becomes(state::up);
}

void rail::becomes(state what) noexcept {
  state_ = what;
  const time_point now = owner_.home().now();
  switch (what) {
    case state::absent:
      return health_.becomes(rail_state::absent, now);
    case state::ending:
      return health_.becomes(rail_state::ending, now);
    case state::up:
      if (!is_open_) return health_.becomes(rail_state::joining, now);
      health_.opened.add(1);
      return health_.becomes(rail_state::up, now);
  }
}

std::size_t rail::stride_of(const link& carrier) noexcept {
  return (std::max<std::size_t>(carrier.corner_bytes(), 1) + corner_alignment - 1) / corner_alignment *
         corner_alignment;
}

// Assigns corners for this link. Control messages get theirs first, because the first 8 calls of furnish() never fail.
void rail::furnish_parts() noexcept {
  static_assert(control_parts < 8, "link::furnish() never fails for the first 8, so that some are left for requests");
  const std::size_t stride = stride_of(*carrier_);
  free_ = free_controls_ = nullptr;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    part& each = parts_[i];
    each.slot = static_cast<std::uint16_t>(i);
    each.corner = corners_.get() + i * stride;
    if (!carrier_->furnish(each)) return;
    part*& list = i < control_parts ? free_controls_ : free_;
    each.next = std::exchange(list, &each);
  }
}

void rail::post_control_receives() noexcept {
  for (receive_slot& each : receives_->slots) post_receive(each.work);
  ring();
}

void rail::post_receive(receive_work& work) noexcept { carrier_->post_receive(work); }

// ---- requests ----

part* rail::take_part() noexcept { return free_ == nullptr ? nullptr : std::exchange(free_, free_->next); }

void rail::give_back(part& what) noexcept { what.next = std::exchange(free_, &what); }

void rail::post(part& what) noexcept {
  ++parts_out_;
  if (what.is_large && large_parts_out_++ == 0) measured_since_ = owner_.home().coarse_now();
  bytes_out_ += what.bytes;
  was_posted_ = true;
  carrier_->post(what);
}

void rail::ring() noexcept {
  if (std::exchange(was_posted_, false) && carrier_ != nullptr) carrier_->ring();
}

rail::sign rail::last_sign() noexcept {
  if (std::exchange(heard_, false)) {
    answered_ = false;
    return sign::of_program;
  }
  if (std::exchange(answered_, false)) return sign::of_machine;
  if (carrier_->properties().completes_on_answer) return sign::none;
  const std::uint64_t taken = carrier_->taken_bytes().value_or(0);
  return std::exchange(taken_, taken) != taken ? sign::of_machine : sign::none;
}

double rail::rate() const noexcept { return owner_.home().coarse_now() - measured_ < rate_memory ? rate_ : 0; }

void rail::note_rate(std::uint64_t bytes) noexcept {
  bytes_measured_ += bytes;
  const time_point now = owner_.home().coarse_now();
  const duration passed = busy_ + (large_parts_out_ != 0 ? now - measured_since_ : duration{});
  if (passed < rate_window) return;
  const double seen = static_cast<double>(bytes_measured_) / std::chrono::duration<double, std::micro>(passed).count();
  rate_ = rate() == 0 ? seen : rate_ * 0.75 + seen * 0.25;
  health_.bytes_per_second.set(static_cast<std::uint64_t>(rate_ * 1e6));
  measured_since_ = measured_ = now;
  busy_ = {};
  bytes_measured_ = 0;
}

void rail::completed(work_request& work, work_status status) noexcept {
  const rail_owner::turn outer(owner_);
  auto& item = static_cast<part&>(work);
  --parts_out_;
  bytes_out_ -= item.bytes;
  if (item.is_large && --large_parts_out_ == 0) busy_ += owner_.home().coarse_now() - measured_since_;
  if (carrier_->properties().completes_on_answer || is_query(work.kind)) answered_ = true;
  if (item.of == nullptr) {
    item.next = std::exchange(free_controls_, &item);
    pump_controls();
    return owner_.control_sent();
  }
  if (status == work_status::done) {
    if (item.is_large) note_rate(item.bytes);
    health_.completed(item.kind, item.bytes);
  }
  owner_.part_ended(*this, item, status);
}

// ---- control messages ----

bool rail::can_send_now() const noexcept {
  return state_ == state::up && free_controls_ != nullptr && waiting_.empty() && sent_ - confirmed_ < most_unconfirmed;
}

void rail::send(const control& what) noexcept try {
  if (state_ != state::up) return;
  waiting_.push(what);
  pump_controls();
} catch (const std::bad_alloc&) {
  owner_.fail(weft::detail::make_error(errc::no_memory, "a message to the peer about its rails"));
}

// Posts waiting control messages, of which at most four may be unconfirmed, and a `credits` message for every two of
// the peer's that nothing else has confirmed. `credits` are not counted, so there is always room for them: at most two
// are in flight, because the peer sends at most four other messages before it gets a confirmation.
void rail::pump_controls() noexcept {
  while (state_ == state::up && free_controls_ != nullptr) {
    const bool may_send = !waiting_.empty() && sent_ - confirmed_ < most_unconfirmed;
    if (!may_send && !std::exchange(knocks_, false) && received_ - told_ < most_unconfirmed / 2) break;
    control next;
    if (may_send) {
      next = waiting_.pop();
      ++sent_;
    }
    health_.controls_sent.add(1);
    next.received = told_ = received_;
    part& item = *std::exchange(free_controls_, free_controls_->next);
    control::storage words;
    const auto packed = next.pack(words);
    const std::span<std::byte> room =
        control_memory_.bytes().subspan(item.slot * control::max_bytes, control::max_bytes);
    std::copy(packed.begin(), packed.end(), room.begin());
    const std::size_t body = packed.size() - control::trailer_bytes;
    std::copy(packed.begin() + static_cast<std::ptrdiff_t>(body), packed.end(), item.trailer.begin());
    item.kind = work_kind::send;
    item.of = nullptr;
    item.bytes = 0;
    item.pieces[0] = control_memory_.slice().subslice(item.slot * control::max_bytes, body);
    item.segments = std::span(item.pieces).first(body != 0 ? 1 : 0);
    item.own = item.trailer;
    post(item);
  }
  ring();
  shut_down_once_said();
}

void rail::received(receive_work& work, const arrival& what) noexcept {
  const rail_owner::turn outer(owner_);
  heard_ = true;
  const std::span<const std::byte> message = work.memory.bytes().first(what.immediate ? 0 : what.bytes);
  if (owner_.is_railed() && control::is_one(message)) return take_control(work, message);
  health_.message_came(message.size() - std::min(message.size(), trailer::bytes));
  owner_.message_came(*this, work, what);
}

void rail::take_control(receive_work& work, std::span<const std::byte> message) noexcept {
  const auto said = control::unpack(message);
  if (!said || said->received - confirmed_ > sent_ - confirmed_)
    return owner_.refuse_peer("a control message that makes no sense");
  confirmed_ = said->received;
  health_.controls_received.add(1);
  if (said->kind != control_kind::credits) ++received_;  // mutant: count words
  is_own(work) ? post_receive(work) : owner_.take_back(*this, work);
  carrier_->ring();
  pump_controls();
  owner_.controlled(*this, *said);
  pump_controls();
}

// ---- the end ----

void rail::give_up(std::string_view why) noexcept {
  if (state_ == state::absent) return;
  if (state_ == state::up && !std::exchange(given_up_, true)) health_.note_why(why);
  carrier_->abort(why);
}

void rail::shut_down() noexcept {
  is_to_shut_down_ = true;
  shut_down_once_said();
}

// Shuts the link down if shut_down() was called and no control message, such as `finish`, still waits to be sent.
void rail::shut_down_once_said() noexcept {
  if (!is_to_shut_down_ || state_ == state::absent || !waiting_.empty()) return;
  is_to_shut_down_ = false;
  carrier_->peer_finished();
  if (carrier_ != nullptr) carrier_->shut_down();
}

void rail::receive_flushed(receive_work& work) noexcept {
  const rail_owner::turn outer(owner_);
  if (!is_own(work)) owner_.receive_returned(work);
}

void rail::input_over() noexcept {
  const rail_owner::turn outer(owner_);
  owner_.input_over();
}

void rail::ended(bool orderly, const error& why) noexcept {
  const rail_owner::turn outer(owner_);
  if (!std::exchange(given_up_, false)) health_.note_why(orderly ? "the peer has ended it" : why.what());
  becomes(state::ending);
  waiting_.clear();
  owner_.rail_ended(*this, orderly, why);
  shut_down_once_said();  // nothing waits to be sent any more
}

// Destroys the link, which only this event may do; while a call waits in the link, keeps it until leave_call().
void rail::closed() noexcept {
  const rail_owner::turn outer(owner_);
  becomes(state::absent);
  if (calls_ != 0) {
    finished_.push_back(std::move(carrier_));  // begin() has made room
  } else {
    carrier_.reset();
  }
  receives_.reset();
  control_memory_ = mr::buffer();
  owner_.rail_closed(*this);
}

void rail::leave_call() noexcept {
  if (--calls_ == 0) finished_.clear();
}

}  // namespace weft::net::rails

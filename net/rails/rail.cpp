// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/rail.hpp>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <new>
#include <utility>

namespace weft::net::rails {
namespace {

// Control messages that the peer has not confirmed, at most.
constexpr std::uint32_t most_unconfirmed = 4;
constexpr duration rate_window = std::chrono::microseconds(200);
// A rail that was slow for a moment is tried again.
constexpr duration rate_memory = std::chrono::milliseconds(100);

}  // namespace

rail::~rail() { assert(state_ == state::absent && "a rail was destroyed while its link may use memory"); }

// ---- beginning ----

void rail::begin(rail_start&& how) {
  assert(state_ == state::absent && carrier_ == nullptr);
  link_parameters its = how.parameters;
  first_own_receive_ = its.receive_depth;
  its.receive_depth = static_cast<std::uint16_t>(its.receive_depth + how.receives.size());
  its.send_depth = static_cast<std::uint16_t>(its.send_depth + control_parts);
  finished_.reserve(finished_.size() + 1);
  waiting_.clear();
  sent_ = confirmed_ = received_ = told_ = 0;
  bytes_out_ = parts_out_ = 0;
  bytes_measured_ = 0;
  rate_ = 0;
  control_memory_ = std::move(how.control_memory);
  receive_memory_ = std::move(how.receives);
  receives_.assign(receive_memory_.size(), receive_work());
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    receives_[i] = {.slot = static_cast<std::uint16_t>(first_own_receive_ + i), .memory = receive_memory_[i].slice()};
  }
  epoch_ = how.epoch;
  peer_fabric_ = how.peer_fabric;
  is_open_ = how.is_open;
  carrier_ = std::move(how.carrier);
  try {
    carrier_->start(*this, its);
    if (!make_parts(its.send_depth)) throw std::bad_alloc();
  } catch (...) {
    if (parts_.empty()) carrier_.reset();
    throw;
  }
  state_ = state::up;
}

// Their corners are those of this link. Control messages have theirs first, because a few can always be made.
bool rail::make_parts(std::size_t count) {
  const std::size_t stride = (carrier_->corner_bytes() + corner_alignment - 1) / corner_alignment * corner_alignment;
  parts_ = std::vector<part>(count);
  corners_.reset(static_cast<std::byte*>(
      ::operator new(std::max<std::size_t>(count * stride, 1), std::align_val_t{corner_alignment})));
  free_ = free_controls_ = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    part& each = parts_[i];
    each.slot = static_cast<std::uint16_t>(i);
    each.corner = corners_.get() + i * stride;
    if (!carrier_->furnish(each)) return i > control_parts;
    part*& list = i < control_parts ? free_controls_ : free_;
    each.next = std::exchange(list, &each);
  }
  return true;
}

void rail::post_control_receives() noexcept {
  for (receive_work& each : receives_) post_receive(each);
  ring();
}

void rail::post_receive(receive_work& work) noexcept { carrier_->post_receive(work); }

// ---- requests ----

part* rail::take_part() noexcept { return free_ == nullptr ? nullptr : std::exchange(free_, free_->next); }

void rail::give_back(part& what) noexcept { what.next = std::exchange(free_, &what); }

void rail::post(part& what) noexcept {
  if (parts_out_++ == 0) measured_since_ = owner_.home().coarse_now();
  bytes_out_ += what.bytes;
  was_posted_ = true;
  carrier_->post(what);
}

void rail::ring() noexcept {
  if (std::exchange(was_posted_, false) && carrier_ != nullptr) carrier_->ring();
}

double rail::rate() const noexcept { return owner_.home().coarse_now() - measured_ < rate_memory ? rate_ : 0; }

void rail::note_rate(std::uint64_t bytes) noexcept {
  bytes_measured_ += bytes;
  const time_point now = owner_.home().coarse_now();
  const duration passed = now - measured_since_;
  if (passed < rate_window) return;
  const double seen = static_cast<double>(bytes_measured_) / std::chrono::duration<double, std::micro>(passed).count();
  rate_ = rate() == 0 ? seen : rate_ * 0.75 + seen * 0.25;
  measured_since_ = measured_ = now;
  bytes_measured_ = 0;
}

void rail::completed(work_request& work, work_status status) noexcept {
  const rail_owner::turn outer(owner_);
  auto& item = static_cast<part&>(work);
  --parts_out_;
  bytes_out_ -= item.bytes;
  ++progress_;
  if (item.of == nullptr) {
    item.next = std::exchange(free_controls_, &item);
    return pump_controls();
  }
  if (status == work_status::done) note_rate(item.bytes);
  owner_.part_ended(*this, item, status);
}

// ---- control messages ----

void rail::send(const control& what) noexcept try {
  if (state_ != state::up) return;
  waiting_.push_back(what);
  pump_controls();
} catch (const std::bad_alloc&) {
  owner_.fail(weft::detail::make_error(errc::no_memory, "a message to the peer about its rails"));
}

// Those that only confirm are not counted, so that they always have room: no more than two are on the way, because the
// peer sends four others at most before it knows of one.
void rail::pump_controls() noexcept {
  while (state_ == state::up && free_controls_ != nullptr) {
    const bool may_send = !waiting_.empty() && sent_ - confirmed_ < most_unconfirmed;
    if (!may_send && !std::exchange(knocks_, false) && received_ - told_ < most_unconfirmed / 2) break;
    control next;
    if (may_send) {
      next = waiting_.front();
      waiting_.pop_front();
      ++sent_;
    }
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
}

void rail::received(receive_work& work, const arrival& what) noexcept {
  const rail_owner::turn outer(owner_);
  ++progress_;
  if (what.immediate || !owner_.is_railed()) return owner_.message_came(*this, work, what);
  const std::span<const std::byte> message = work.memory.bytes().first(what.bytes);
  if (!control::is_one(message)) return owner_.message_came(*this, work, what);
  take_control(work, message);
}

void rail::take_control(receive_work& work, std::span<const std::byte> message) noexcept {
  const auto said = control::unpack(message);
  if (!said || said->received - confirmed_ > sent_ - confirmed_)
    return owner_.refuse_peer("a control message that makes no sense");
  confirmed_ = said->received;
  if (said->kind != control_kind::credits) ++received_;
  is_own(work) ? post_receive(work) : owner_.take_back(*this, work);
  carrier_->ring();
  owner_.controlled(*this, *said);
  pump_controls();
}

// ---- the end ----

void rail::give_up(std::string_view why) noexcept {
  if (state_ == state::absent) return;
  carrier_->abort(why);
}

void rail::shut_down() noexcept {
  if (state_ == state::up) carrier_->shut_down();
}

void rail::receive_flushed(receive_work& work) noexcept {
  const rail_owner::turn outer(owner_);
  if (!is_own(work)) owner_.receive_returned(work);
}

void rail::ended(bool orderly, const error& why) noexcept {
  const rail_owner::turn outer(owner_);
  state_ = state::ending;
  waiting_.clear();
  owner_.rail_ended(*this, orderly, why);
}

// Inside this call alone the link may go.
void rail::closed() noexcept {
  const rail_owner::turn outer(owner_);
  state_ = state::absent;
  if (calls_ != 0) {
    finished_.push_back(std::move(carrier_));  // begin() has made room
  } else {
    carrier_.reset();
  }
  receive_memory_.clear();
  control_memory_ = mr::buffer();
  owner_.rail_closed(*this);
}

void rail::leave_call() noexcept {
  if (--calls_ == 0) finished_.clear();
}

}  // namespace weft::net::rails

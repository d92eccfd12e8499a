// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/incoming.hpp>

#include <cassert>
#include <cstddef>
#include <cstring>
#include <utility>

namespace weft::net::rails {

void incoming::begin(link_events& events, std::uint16_t depth) {
  held_.reserve(depth);
  idle_.reserve(depth);
  returning_.reserve(depth);
  held_messages_.reserve(depth);
  first_receives_ = depth;
  events_ = &events;
}

bool incoming::post(receive_work& work) noexcept {
  if (first_receives_ != 0) {  // the set-up may have posted these receives to the device, in this order
    rail& first = owner_.rail_at(0);
    if (first.phase() == rail::state::absent) {
      idle_.push_back(&work);
    } else {
      first.post_receive(work);
    }
    return --first_receives_ == 0;
  }
  if (over_ == nullptr || over_->phase() == rail::state::absent) {
    idle_.push_back(&work);
  } else {
    take_back(*over_, work);
  }
  return false;
}

// Makes a receive idle if messages arrive over another rail; otherwise holds it back, or posts it once enough are held.
// As many are held as the rail has receives of its own, because a message that lands in one of the rail's own receives
// is copied into a held receive.
void incoming::take_back(rail& over, receive_work& work) noexcept {
  if (&over != over_) return idle_.push_back(&work);
  if (owner_.is_railed() && held_.size() < control_receives) return held_.push_back(&work);
  over.post_receive(work);
}

void incoming::receive_over(rail* over) noexcept {
  over_ = over;
  given_back_ = 0;  // the peer sends `revoke` again
  idle_.insert(idle_.end(), held_.begin(), held_.end());
  held_.clear();
  if (over_ == nullptr) return;
  assert(returning_.empty());
  returning_.swap(idle_);
  for (receive_work* each : returning_) take_back(*over, *each);
  returning_.clear();
  if (over_ != nullptr && over_->carrier() != nullptr) over_->carrier()->ring();
}

void incoming::message_came(rail& over, receive_work& work, const arrival& what) noexcept {
  if (!over.is_own(work)) {
    if (&over == over_) return deliver(work, what);
    idle_.push_back(&work);
    return owner_.refuse_peer("a message over a rail that carries none");
  }
  if (&over != over_ || held_.empty()) return owner_.refuse_peer("a message for which there is no receive");
  receive_work& room = *held_.back();
  held_.pop_back();
  const std::size_t bytes = what.immediate ? 0 : what.bytes;
  std::memcpy(room.memory.data(), work.memory.data(), bytes);
  over.post_receive(work);
  deliver(room, what);
}

void incoming::deliver(receive_work& work, const arrival& what) noexcept {
  if (owner_.has_ended()) return idle_.push_back(&work);
  ++count_;
  arrival seen = what;
  if (owner_.is_railed()) seen.invalidated_key.reset();  // a key of one rail does not name the memory
  if (given_back_ != 0) {
    memory_.came_back(given_back_);
    seen.invalidated_key = std::exchange(given_back_, 0);
  }
  if (seen.invalidated_key || !held_messages_.empty()) [[unlikely]] {
    held_messages_.push_back({&work, seen});  // there is room for all receives
    return deliver_held();
  }
  events_->received(work, seen);
}

void incoming::deliver_held() noexcept {
  while (!held_messages_.empty() && !owner_.has_ended()) {
    const held_message next = held_messages_.front();
    if (next.what.invalidated_key && memory_.is_closing(*next.what.invalidated_key)) return;
    held_messages_.erase(held_messages_.begin());
    events_->received(*next.work, next.what);
  }
}

void incoming::give_back(rail& over, std::uint64_t handle) noexcept {
  if (&over != over_ || given_back_ != 0) {
    return owner_.refuse_peer("memory given back without a message", link::violation::other);
  }
  given_back_ = handle;
  if (memory_.give_back(handle)) return;
  owner_.refuse_peer("the peer gave memory back that is not exposed to it", link::violation::revoking);
}

void incoming::flush() noexcept {
  receive_over(nullptr);
  for (const held_message& each : std::exchange(held_messages_, {})) idle_.push_back(each.work);
  for (receive_work* each : std::exchange(idle_, {})) events_->receive_flushed(*each);
}

}  // namespace weft::net::rails

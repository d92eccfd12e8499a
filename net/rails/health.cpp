// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/health.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <new>

namespace weft::net::rails {
namespace {

void keep(std::string& here, std::string_view words) noexcept {
  try {
    here = words;
  } catch (const std::bad_alloc&) {  // the previous text stays
  }
}

// Finds the statistics of that fabric, or adds them.
fabric_rail_statistics& find_fabric(std::vector<fabric_rail_statistics>& all, std::string_view name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const fabric_rail_statistics& each) { return each.fabric == name; });
  if (found != all.end()) return *found;
  fabric_rail_statistics& made = all.emplace_back();
  made.fabric = name;
  return made;
}

void count_state(fabric_rail_statistics& at, rail_state what) noexcept {
  switch (what) {
    case rail_state::absent:
      ++at.absent;
      break;
    case rail_state::joining:
      ++at.joining;
      break;
    case rail_state::up:
      ++at.up;
      break;
    case rail_state::ending:
      ++at.ending;
      break;
  }
}

}  // namespace

void rail_health::goes(std::string_view fabric, std::string_view peer) noexcept {
  const std::lock_guard lock(mutex_);
  keep(fabric_, fabric);
  keep(peer_, peer);
}

void rail_health::becomes(rail_state what, time_point now) noexcept {
  const std::lock_guard lock(mutex_);
  state_ = what;
  since_ = now;
}

void rail_health::note_why(std::string_view words) noexcept {
  const std::lock_guard lock(mutex_);
  keep(why_, words);
}

bool rail_health::is_known() const noexcept {
  const std::lock_guard lock(mutex_);
  return !fabric_.empty();
}

rail_traffic rail_health::so_far() const noexcept {
  rail_traffic now;
  now.to_peer = {.requests = to_peer_.requests.get(), .bytes = to_peer_.bytes.get()};
  now.from_peer = {.requests = from_peer_.requests.get(), .bytes = from_peer_.bytes.get()};
  now.sent_again = sent_again.get();
  now.opened = opened.get();
  now.lost = lost.get();
  now.control_messages_sent = controls_sent.get();
  now.control_messages_received = controls_received.get();
  return now;
}

rail_statistics rail_health::snapshot(unsigned number, time_point now) const {
  rail_statistics its;
  its.number = number;
  its.carries_messages = carries_messages.get() != 0;
  its.bytes_per_second = bytes_per_second.get();
  its.so_far = so_far();
  const std::lock_guard lock(mutex_);
  its.fabric = fabric_;
  its.peer = peer_;
  its.why = why_;
  its.state = state_;
  its.since = std::max<std::chrono::nanoseconds>(now - since_, std::chrono::nanoseconds::zero());
  return its;
}

std::string rail_health::way() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("{} to {}", fabric_, peer_);
}

std::string rail_health::fabric() const {
  const std::lock_guard lock(mutex_);
  return fabric_;
}

std::string rail_health::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

// ---- rails of a device ----

device_rails::device_rails(const std::vector<std::string_view>& fabrics) {
  for (const std::string_view each : fabrics) find_fabric(ended_, each);
}

void device_rails::add(rail_health& which) noexcept {
  const std::lock_guard lock(mutex_);
  has_had_any_ = true;
  all_.push_front(which);
}

void device_rails::remove(rail_health& which) noexcept {
  const std::lock_guard lock(mutex_);
  if (!all_.contains(which)) return;
  all_.remove(which);
  const std::lock_guard its(which.mutex_);
  const auto found = std::find_if(ended_.begin(), ended_.end(),
                                  [&](const fabric_rail_statistics& each) { return each.fabric == which.fabric_; });
  if (found != ended_.end()) found->so_far += which.so_far();
}

void device_rails::add_to(std::vector<fabric_rail_statistics>& all) const {
  const std::lock_guard lock(mutex_);
  for (const fabric_rail_statistics& each : ended_) find_fabric(all, each.fabric).so_far += each.so_far;
  for (const rail_health& each : all_) {
    const std::lock_guard its(each.mutex_);
    if (each.fabric_.empty()) continue;
    fabric_rail_statistics& at = find_fabric(all, each.fabric_);
    count_state(at, each.state_);
    if (each.state_ == rail_state::up) at.bytes_per_second += each.bytes_per_second.get();
    at.so_far += each.so_far();
  }
}

}  // namespace weft::net::rails

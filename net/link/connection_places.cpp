// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/connection_places.hpp>
#include <weft/net/link/eviction.hpp>

namespace weft::net {

std::optional<time_point> connection_places::evict(time_point now) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) {
    const bool others_follow = last_evicted_ && now < later(*last_evicted_, 2 * shortest_wait);
    return others_follow ? std::optional(later(now, shortest_wait)) : std::nullopt;
  }
  waiting_set_up& oldest = peer_to_evict(waiting_);
  const time_point due = later(oldest.since_, shortest_wait);
  if (due > now) return due;
  last_evicted_ = now;
  std::erase(waiting_, &oldest);
  oldest.evicted_ = true;
  oldest.place_.give_up();
  oldest.home_.submit(oldest);  // it still exists: its destructor locks the mutex first
  return due;
}

waiting_set_up::waiting_set_up(connection_place& place, const peer_origin& from, stop_token parent)
    : home_(*executor_core::current()), place_(place), origin_(from), since_(home_.now()), stop_(parent) {
  const std::lock_guard lock(place_.of_->mutex_);
  place_.of_->waiting_.push_back(this);
}

waiting_set_up::~waiting_set_up() {
  if (ends_without_place() && !told_) home_.withdraw(*this);
}

bool waiting_set_up::ends_without_place() noexcept {
  const std::lock_guard lock(place_.of_->mutex_);
  std::erase(place_.of_->waiting_, this);
  return evicted_;
}

void waiting_set_up::run_on_executor() noexcept {
  told_ = true;
  stop_.request_stop();
}

}  // namespace weft::net

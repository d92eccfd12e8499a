// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/write_counter_core.hpp>

#include <algorithm>

namespace weft::mr::detail {

bool write_counter_core::wait(remote_writes_request& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  waiters_.push(waiter);
  update_next_due();
  if (count_.load() < waiter.wanted_) return true;
  static_cast<void>(waiters_.remove(waiter));
  update_next_due();
  return false;
}

bool write_counter_core::give_up(remote_writes_request& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  if (!waiters_.remove(waiter)) return false;
  update_next_due();
  return true;
}

void write_counter_core::wake_those_due() noexcept {
  weft::detail::remote_wake_ups due;
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = count_.load();
  waiters_.for_each([&](weft::detail::remote_waiter& item) {
    if (static_cast<remote_writes_request&>(item).wanted_ > now) return;
    static_cast<void>(waiters_.remove(item));
    due.add(item);
  });
  update_next_due();
}

void write_counter_core::update_next_due() noexcept {
  std::uint64_t least = nobody;
  waiters_.for_each([&least](const weft::detail::remote_waiter& item) {
    least = std::min(least, static_cast<const remote_writes_request&>(item).wanted_);
  });
  next_due_.store(least);
}

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/write_counter.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::mr {
namespace detail {

bool write_counter_core::wait(remote_writes_operation& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  waiters_.push(waiter);
  update_next_due();
  if (count_.load() < waiter.wanted_) return true;
  static_cast<void>(waiters_.remove(waiter));
  update_next_due();
  return false;
}

bool write_counter_core::give_up(remote_writes_operation& waiter) noexcept {
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
    if (static_cast<remote_writes_operation&>(item).wanted_ > now) return;
    static_cast<void>(waiters_.remove(item));
    due.add(item);
  });
  update_next_due();
}

void write_counter_core::update_next_due() noexcept {
  std::uint64_t least = nobody;
  waiters_.for_each([&least](const weft::detail::remote_waiter& item) {
    least = std::min(least, static_cast<const remote_writes_operation&>(item).wanted_);
  });
  next_due_.store(least);
}

}  // namespace detail

remote_writes_operation::remote_writes_operation(remote_writes_operation&& other) noexcept
    : remote_waiter(std::move(other)),
      counter_(std::move(other.counter_)),
      wanted_(other.wanted_),
      region_(std::move(other.region_)) {}

remote_writes_operation::~remote_writes_operation() {
  if (waiting() && !counter_->give_up(*this)) weft::detail::remote_waiters::forget(*this);
}

std::uint64_t remote_writes_operation::await_resume() {
  region_ = {};
  const std::uint64_t now = counter_->value();
  if (now < wanted_) throw error(errc::canceled, "wait for writes of peers");
  return now;
}

void remote_writes_operation::begin() {
  if (!counter_->wait(*this)) finish();
}

void remote_writes_operation::cancel() noexcept {
  if (counter_->give_up(*this)) finish();  // else somebody resumes it already
}

}  // namespace weft::mr

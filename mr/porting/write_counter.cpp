// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/write_counter.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::mr {
namespace detail {

bool write_counter_core::wait(remote_writes_operation& waiter) {
  auto mail = std::make_unique<letter>(waiter);
  const std::lock_guard lock(mutex_);
  waiter.previous_ = nullptr;
  waiter.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &waiter;
  first_ = &waiter;
  waiter.queued_ = true;
  update_next_due();
  if (count_.load() < waiter.wanted_) {
    waiter.letter_ = mail.release();
    return true;
  }
  unlink(waiter);
  update_next_due();
  return false;
}

bool write_counter_core::give_up(remote_writes_operation& waiter) noexcept {
  std::unique_ptr<letter> unused;
  const std::lock_guard lock(mutex_);
  if (!waiter.queued_) return false;
  unlink(waiter);
  unused.reset(std::exchange(waiter.letter_, nullptr));
  update_next_due();
  return true;
}

void write_counter_core::abandon(remote_writes_operation& waiter) noexcept {
  { const std::lock_guard posted(posting_); }  // it is in the mailbox
  waiter.letter_->cross_out();
}

void write_counter_core::wake_those_due() noexcept {
  const std::lock_guard posting(posting_);
  letter* news = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = count_.load();
    for (remote_writes_operation* item = first_; item != nullptr;) {
      remote_writes_operation& waiter = *std::exchange(item, item->next_);
      if (waiter.wanted_ > now) continue;
      unlink(waiter);
      waiter.letter_->next = std::exchange(news, waiter.letter_);
    }
    update_next_due();
  }
  post_all(news);
}

void write_counter_core::unlink(remote_writes_operation& waiter) noexcept {
  (waiter.previous_ != nullptr ? waiter.previous_->next_ : first_) = waiter.next_;
  if (waiter.next_ != nullptr) waiter.next_->previous_ = waiter.previous_;
  waiter.queued_ = false;
}

void write_counter_core::update_next_due() noexcept {
  std::uint64_t least = nobody;
  for (const remote_writes_operation* item = first_; item != nullptr; item = item->next_) {
    least = std::min(least, item->wanted_);
  }
  next_due_.store(least);
}

}  // namespace detail

remote_writes_operation::remote_writes_operation(remote_writes_operation&& other) noexcept
    : mailed_operation(std::move(other)),
      counter_(std::move(other.counter_)),
      wanted_(other.wanted_),
      region_(std::move(other.region_)) {}

remote_writes_operation::~remote_writes_operation() {
  if (waiting() && !counter_->give_up(*this)) counter_->abandon(*this);
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

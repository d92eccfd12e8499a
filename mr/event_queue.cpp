// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/event_queue.hpp>
#include <weft/mr/submission.hpp>

#include <cassert>
#include <utility>

namespace weft::mr {
namespace detail {

void event_queue_core::deliver(submission& ended) noexcept {
  std::shared_ptr<submission> unread;  // nobody reads it any more; we may go with it
  weft::detail::remote_waiter* woken = nullptr;
  {
    std::unique_lock lock(mutex_);
    if ((ended.abandoned_ || closed_) && !ended.failure_) {
      lock.unlock();  // nobody else looks at it while it is being worked on
      ended.undo();
      lock.lock();
    }
    if (!ended.failure_) ended.key_ = ended.target_->registration.remote_key;
    if (closed_) {
      ended.progress_ = submission::progress::read;
      unread = std::move(ended.self_);
    } else {
      append(ended);
      if (!waiters_.empty()) {
        woken = &waiters_.pop();
        static_cast<event_queue::next_operation*>(woken)->received_ = take_first();
      }
    }
  }
  if (woken != nullptr) weft::detail::remote_waiters::wake(*woken);
}

std::shared_ptr<submission> event_queue_core::take() noexcept {
  const std::lock_guard lock(mutex_);
  return take_first();
}

std::shared_ptr<submission> event_queue_core::take_or_wait(weft::detail::remote_waiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<submission> taken = take_first();
  if (taken == nullptr) waiters_.push(waiter);
  return taken;
}

bool event_queue_core::give_up(weft::detail::remote_waiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  return waiters_.remove(waiter);
}

std::size_t event_queue_core::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return size_;
}

void event_queue_core::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    assert(waiters_.empty() && "an event queue was destroyed while a task waits for it");
    closed_ = true;
  }
  while (const auto unread = take()) static_cast<void>(unread->event());
}

void event_queue_core::append(submission& item) noexcept {
  item.progress_ = submission::progress::listed;
  item.previous_ = last_;
  item.next_ = nullptr;
  (last_ != nullptr ? last_->next_ : first_) = &item;
  last_ = &item;
  ++size_;
}

void event_queue_core::remove(submission& item) noexcept {
  (item.previous_ != nullptr ? item.previous_->next_ : first_) = item.next_;
  (item.next_ != nullptr ? item.next_->previous_ : last_) = item.previous_;
  --size_;
}

std::shared_ptr<submission> event_queue_core::take_first() noexcept {
  if (first_ == nullptr) return nullptr;
  submission& item = *first_;
  remove(item);
  item.progress_ = submission::progress::read;
  return std::move(item.self_);
}

}  // namespace detail

pending_region::~pending_region() {
  if (submission_ != nullptr) submission_->abandon();
}

bool pending_region::is_complete() const noexcept { return submission_->is_complete(); }

std::uint32_t pending_region::key() const { return submission_->key(); }

event_queue::event_queue() : core_(std::make_shared<detail::event_queue_core>()) {}

event_queue::~event_queue() { core_->close(); }

event_queue::next_operation event_queue::next() noexcept { return next_operation(*core_); }

std::optional<registration_event> event_queue::try_next() noexcept {
  const auto taken = core_->take();
  if (taken == nullptr) return std::nullopt;
  return taken->event();
}

std::size_t event_queue::size() const noexcept { return core_->size(); }

event_queue::next_operation::next_operation(next_operation&& other) noexcept
    : remote_waiter(std::move(other)), core_(other.core_) {}

event_queue::next_operation::~next_operation() {
  if (waiting() && !core_->give_up(*this)) {
    weft::detail::terminate_because("a task was destroyed while a worker brings it the end of a registration");
  }
}

bool event_queue::next_operation::await_ready() noexcept {
  received_ = core_->take();
  return received_ != nullptr;
}

registration_event event_queue::next_operation::await_resume() {
  if (received_ == nullptr) throw error(errc::canceled, "wait for the end of a registration");
  return received_->event();
}

void event_queue::next_operation::begin() {
  auto taken = core_->take_or_wait(*this);
  if (taken == nullptr) return;  // from here on a worker writes to us
  received_ = std::move(taken);
  finish();
}

void event_queue::next_operation::cancel() noexcept {
  if (core_->give_up(*this)) finish();
}

}  // namespace weft::mr

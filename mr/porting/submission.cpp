// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/submission.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <fmt/core.h>

#include <cassert>
#include <utility>

namespace weft::mr::porting::detail {
namespace {

error failure_of(errc code, const mr::detail::region_state& target) {
  return {code, fmt::format("register {} bytes on {}", target.size(), target.domain->name())};
}

}  // namespace

// ---- the queue ----

void event_queue_core::deliver(submission& ended) noexcept {
  while (!try_to_deliver(ended)) ended.undo();  // only this thread uses target_ and failure_ while `ended` is working
}

bool event_queue_core::try_to_deliver(submission& ended) noexcept {
  const std::shared_ptr<event_queue_core> self = ended.queue_;  // the event's reader may drop the last other reference
  std::shared_ptr<submission> unread;  // nobody will read its event; destroyed after the mutex is released
  weft::detail::remote_wake_ups served;
  const std::lock_guard lock(mutex_);
  if ((ended.abandoned_ || closed_) && !ended.failure_) return false;
  if (!ended.failure_) ended.key_ = ended.target_->registration.remote_key;
  if (closed_) {
    ended.progress_ = submission::progress::read;
    unread = std::move(ended.self_);
  } else {
    append(ended);
    serve(served);
  }
  return true;
}

void event_queue_core::serve(weft::detail::remote_wake_ups& served) noexcept {
  if (waiters_.empty() || events_.empty()) return;
  auto& waiter = static_cast<event_request&>(waiters_.pop());
  waiter.received_ = take_first();
  served.add(waiter);
}

std::shared_ptr<submission> event_queue_core::take() noexcept {
  const std::lock_guard lock(mutex_);
  return take_first();
}

std::shared_ptr<submission> event_queue_core::take_or_wait(event_request& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<submission> taken = take_first();
  if (taken == nullptr) waiters_.push(waiter);
  return taken;
}

bool event_queue_core::give_up(event_request& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  return waiters_.remove(waiter);
}

void event_queue_core::put_back(std::shared_ptr<submission> unread) noexcept {
  submission& item = *unread;
  const std::shared_ptr<event_queue_core> self = item.queue_;  // as in try_to_deliver()
  bool undo = false;
  {
    weft::detail::remote_wake_ups served;
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    item.self_ = std::move(unread);
    undo = item.abandoned_ && !item.failure_;
    if (undo) {
      item.progress_ = submission::progress::working;
    } else {
      prepend(item);
      serve(served);
    }
  }
  if (undo) item.undo_on_worker();
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
  events_.push_back(item);
  ++size_;
}

void event_queue_core::prepend(submission& item) noexcept {
  item.progress_ = submission::progress::listed;
  events_.push_front(item);
  ++size_;
}

void event_queue_core::remove(submission& item) noexcept {
  events_.remove(item);
  --size_;
}

std::shared_ptr<submission> event_queue_core::take_first() noexcept {
  if (events_.empty()) return nullptr;
  submission& item = events_.front();
  remove(item);
  item.progress_ = submission::progress::read;
  return std::move(item.self_);
}

// ---- a registration ----

submission::submission(std::unique_ptr<mr::detail::region_state> target, const registration_options& options,
                       std::shared_ptr<event_queue_core> queue, void* context)
    : target_(std::move(target)),
      options_(options),
      queue_(std::move(queue)),
      workers_(weft::resource_workers(executor_core::current())),
      context_(context),
      canceled_(failure_of(errc::canceled, *target_)),
      out_of_memory_(failure_of(errc::no_memory, *target_)) {}

void submission::start(std::shared_ptr<submission> item) {
  submission& started = *item;
  started.self_ = std::move(item);
  try {
    started.workers_.submit(started);
  } catch (...) {
    const auto self = std::move(started.self_);
    throw;
  }
}

// Destroys the region, if its event was never read.
submission::~submission() { const region left(std::move(target_)); }

void submission::run() noexcept {
  if (!target_->registered) perform();  // else this run is for deliver(), which undoes it
  queue_->deliver(*this);
}

void submission::perform() noexcept {
  try {
    if (mr::detail::population::wanted(*target_)) {
      mr::detail::population pages(*target_);
      while (pages.next()) {
        if (!is_abandoned()) continue;
        failure_ = canceled_;
        break;
      }
    }
    if (!failure_) target_->register_now();
  } catch (const error& why) {
    failure_ = why;
  } catch (const std::exception&) {
    failure_ = out_of_memory_;
  }
  if (failure_) target_.reset();
}

// Undoes the registration, which blocks if the memory is registered.
void submission::undo() noexcept {
  target_.reset();
  failure_ = canceled_;
}

void submission::abandon() noexcept {
  {
    const std::lock_guard lock(queue_->mutex_);
    abandoned_ = true;
    if (progress_ == progress::read) return;                // if the reader is destroyed first, put_back() undoes it
    if (progress_ == progress::listed && failure_) return;  // the event reports the failure: nothing to undo
    if (progress_ == progress::listed) {
      queue_->remove(*this);
      progress_ = progress::working;
    } else if (!workers_.withdraw(*this)) {
      return;  // its worker will find it abandoned
    }
  }
  undo_on_worker();
}

void submission::undo_on_worker() noexcept {
  if (!target_->registered) return queue_->deliver(*this);
  try {
    workers_.submit(*this);
  } catch (const std::exception&) {  // no thread for a worker: undo it here, which stalls the caller
    queue_->deliver(*this);
  }
}

bool submission::is_abandoned() const noexcept {
  const std::lock_guard lock(queue_->mutex_);
  return abandoned_;
}

bool submission::is_complete() const noexcept {
  const std::lock_guard lock(queue_->mutex_);
  return progress_ != progress::working;
}

std::uint64_t submission::key() const {
  const std::lock_guard lock(queue_->mutex_);
  if (progress_ == progress::working) {
    throw error(errc::key_not_available, "take the key of a region that is being registered");
  }
  if (failure_) throw *failure_;
  if ((options_.usage & peer_usages) == usage::none) {
    throw error(errc::access_denied, "take the key of a region registered for " + to_string(options_.usage) +
                                         ", which gives peers no access");
  }
  return key_;
}

registration_event submission::event() noexcept {
  if (failure_) return {context_, *failure_};
  return {context_, region(std::move(target_))};
}

}  // namespace weft::mr::porting::detail

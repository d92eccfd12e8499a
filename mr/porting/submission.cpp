// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/submission.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::mr::detail {
namespace {

error failure_of(errc code, const region_state& target) {
  return {code, fmt::format("register {} bytes on {}", target.size(), target.domain->name())};
}

}  // namespace

submission::submission(std::unique_ptr<region_state> target, const registration_options& options,
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

// One that is listed no more, or was never read.
submission::~submission() { const region left(std::move(target_)); }

void submission::run() noexcept {
  if (!target_->registered) perform();  // else it is here to be undone
  queue_->deliver(*this);
}

void submission::perform() noexcept {
  try {
    if (population::wanted(*target_)) {
      population pages(*target_);
      while (pages.next()) {
        if (!is_abandoned()) continue;
        failure_ = canceled_;
        return;
      }
    }
    target_->register_now();
  } catch (const error& why) {
    failure_ = why;
  } catch (const std::exception&) {
    failure_ = out_of_memory_;
  }
}

// Blocks, if something is registered.
void submission::undo() noexcept {
  target_.reset();
  failure_ = canceled_;
}

void submission::abandon() noexcept {
  {
    const std::lock_guard lock(queue_->mutex_);
    abandoned_ = true;
    if (progress_ == progress::read) return;                // but its reader may be destroyed before that reads it
    if (progress_ == progress::listed && failure_) return;  // that is its event
    if (progress_ == progress::listed) {
      queue_->remove(*this);
      progress_ = progress::working;
    } else if (!workers_.withdraw(*this)) {
      return;  // its worker will see
    }
  }
  undo_on_worker();
}

void submission::undo_on_worker() noexcept {
  if (!target_->registered) return queue_->deliver(*this);
  try {
    workers_.submit(*this);
  } catch (const std::exception&) {  // no thread to be had: then it has to stall the caller
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
    throw error(errc::key_not_available, "the key of a region that is being registered");
  }
  if (failure_) throw *failure_;
  if ((options_.usage & peer_usages) == mr::usage::none) {
    throw error(errc::access_denied, "a region registered for " + to_string(options_.usage) + " has no key for peers");
  }
  return key_;
}

registration_event submission::event() noexcept {
  if (failure_) return {context_, *failure_};
  return {context_, region(std::move(target_))};
}

}  // namespace weft::mr::detail

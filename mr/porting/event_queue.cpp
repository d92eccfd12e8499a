// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/event_queue.hpp>
#include <weft/mr/porting/submission.hpp>
#include <weft/runtime/error.hpp>

#include <utility>

namespace weft::mr::porting {

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
    : event_request(std::move(other)), core_(other.core_) {}

event_queue::next_operation::~next_operation() {
  if (waiting() && !core_->give_up(*this)) weft::detail::remote_waiters::forget(*this);
  if (received_ != nullptr) core_->put_back(std::move(received_));
}

bool event_queue::next_operation::await_ready() noexcept {
  received_ = core_->take();
  return received_ != nullptr;
}

registration_event event_queue::next_operation::await_resume() {
  if (received_ == nullptr) throw error(errc::canceled, "wait for the end of a registration");
  const std::shared_ptr<detail::submission> read = std::move(received_);
  return read->event();
}

void event_queue::next_operation::begin() {
  auto taken = core_->take_or_wait(*this);
  if (taken == nullptr) return;  // from here on a worker may write to this object
  received_ = std::move(taken);
  finish();
}

void event_queue::next_operation::cancel() noexcept {
  if (core_->give_up(*this)) finish();
}

}  // namespace weft::mr::porting

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/write_counter.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::mr::porting {

remote_writes_operation::remote_writes_operation(remote_writes_operation&& other) noexcept
    : remote_writes_request(std::move(other)), counter_(std::move(other.counter_)), region_(std::move(other.region_)) {}

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
  if (counter_->give_up(*this)) finish();  // else it is being resumed already
}

void bind(region& target, const write_counter& counter) {
  mr::detail::region_state* const state = target.state();
  if (!target) throw error(errc::invalid_argument, "bind a counter to an empty region");
  if (state->enabled) {
    throw error(errc::invalid_argument, "bind a counter to a region that is enabled: register it with `disabled`");
  }
  if (!overlaps(target.usage(), usage::write_dst | usage::atomic_dst | usage::bind_window)) {
    throw error(errc::access_denied,
                fmt::format("bind a counter to a region registered for {}: no peer can write there",
                            to_string(target.usage())));
  }
  if (state->holders.load(std::memory_order_acquire) != 1) {
    throw error(errc::busy, "bind a counter to a region that is in use");
  }
  state->told = mr::detail::told_counter(counter.core_);
  state->domain->count_writes(*state, *counter.core_);
  state->windows.told = state->told.number();
  state->windows.counter = counter.core_.get();
  state->counter = counter.core_;
}

remote_writes_operation remote_writes(const region& target, std::uint64_t n) {
  const mr::detail::region_state* const state = target.state();
  if (!target || state->counter == nullptr) {
    throw error(errc::invalid_argument,
                "wait for writes of peers to a region that has no counter: see porting::bind()");
  }
  return {state->counter, n, region_pin(target.slice())};
}

}  // namespace weft::mr::porting

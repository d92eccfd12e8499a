// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/lending.hpp>
#include <weft/net/exposure.hpp>
#include <weft/runtime/core/stop_shield.hpp>

namespace weft::net {

exposure::~exposure() { drop(); }

exposure& exposure::operator=(exposure&& other) noexcept {
  drop();
  lending_ = std::move(other.lending_);
  buffer_ = std::move(other.buffer_);
  remote_ = std::exchange(other.remote_, std::nullopt);
  ended_by_ = other.ended_by_;
  return *this;
}

// The lending keeps the buffer until the peer can no longer touch it.
lending* exposure::take_lending() noexcept {
  lending_->hold(std::move(buffer_));
  return lending_.take();
}

void exposure::drop() noexcept {
  if (lending_ != nullptr) link_keys::end(take_lending());
}

void exposure::retire() noexcept {
  if (lending_ != nullptr) link_keys::retire(take_lending());
}

task<mr::buffer> exposure::revoke() {
  if (lending_ == nullptr) co_return std::move(buffer_);
  if (!lending_->keys().on_own_thread()) throw error(errc::wrong_thread, "revoke the key of an exposure");
  recall back(take_lending());
  if (!back.is_over()) {
    const detail::stop_shield shield(co_await detail::current_promise());
    co_await back.wait();
  }
  ended_by_ = back.end();
  co_return back.take_buffer();
}

task<exposure_end> exposure::ended() {
  if (lending_ == nullptr) co_return ended_by_;
  if (!lending_->keys().on_own_thread()) throw error(errc::wrong_thread, "wait for the end of an exposure");
  loan_watch watch(*lending_);
  if (!watch.is_over()) co_await watch.wait();
  co_return watch.end();
}

exposure_end exposure::ended_by() const noexcept { return lending_ != nullptr ? lending_->ended_by() : ended_by_; }

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/descriptor_watch.hpp>
#include <weft/runtime/core/background.hpp>

#include <cassert>
#include <utility>

namespace weft::net::verbs {

descriptor_watch::descriptor_watch(int fd)
    : io_operation(io_kind::readable),
      home_(*executor_core::current()),
      descriptor_(fd, home_.calls(), descriptor::borrowed) {
  target = &descriptor_;
}

void descriptor_watch::prepare() {
  if (!stopping_) stopping_ = weft::detail::root_handle<void>(wait_until_stopped());
}

void descriptor_watch::enter() noexcept {
  assert(stopping_ && "a watch was entered before it was prepared");
  ++users_;
  start_if_used();
}

void descriptor_watch::start_if_used() noexcept {
  if (users_ != 0 && !exhausted_ && !in_progress()) home_.io().start(*this);
}

void descriptor_watch::leave() noexcept {
  if (--users_ != 0 || !in_progress()) return;
  home_.io().cancel(*this);
  if (home_.on_own_thread()) return run_in_background(home_, std::move(stopping_));
  while (in_progress()) home_.io().poll(1);
}

task<> descriptor_watch::wait_until_stopped() {
  if (!in_progress() || users_ != 0) co_return;
  stopped_.reset();
  co_await stopped_.wait();
}

void descriptor_watch::complete(int) noexcept {
  exhausted_ = !on_readable();
  stopped_.set();
  start_if_used();
}

}  // namespace weft::net::verbs

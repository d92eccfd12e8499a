// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_end.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <new>
#include <string>
#include <utility>

namespace weft::net {

using weft::detail::make_error;

namespace {

constexpr const char* without_memory_to_close = "there was no memory to close the connection in order";

}  // namespace

void connection_end::begin() noexcept {
  if (state_.closing || state_.failure) return in_.empty_inbox();
  state_.closing = true;
  over_.set();
  in_.stop_refilling();
  in_.deliver();
  advance();
  in_.discard_inbox();
}

void connection_end::take_step() noexcept {
  if (state_.shut_down || state_.failure) return;
  if (!out_.is_idle() || out_.is_busy_with(message_kind::close)) return;  // mutant: close before what was posted
  if (state_.properties().native && !state_.peer_closed && !state_.close_sent) {  // mutant: close without telling
    state_.close_sent = true;
    return out_.post_control(message_kind::close);
  }
  state_.shut_down = true;
  state_.link().shut_down();
}

void connection_end::peer_has_closed() noexcept {
  state_.peer_closed = true;
  over_.set();
  state_.link().peer_finished();
  in_.stop_refilling();
  out_.fail_waiting(state_.why_ended());
  in_.deliver();
  advance();
}

void connection_end::input_over() noexcept {
  state_.input_over = true;
  in_.stop_refilling();
  in_.deliver();
}

void connection_end::link_ended(bool orderly, const error& why) noexcept {
  const bool finished = orderly && !state_.properties().native;  // a foreign peer sends no close message
  if (!state_.failure) {
    if (!state_.aborted && (state_.peer_closed || finished)) {
      state_.failure = make_error(errc::peer_closed);
    } else if (orderly) {
      state_.failure = make_error(errc::peer_vanished);
    } else {
      state_.failure = why;
    }
  }
  if (finished) state_.peer_closed = true;
  over_.set();
  in_.stop_refilling();
  out_.fail_waiting(*state_.failure);  // mutant: forget who waits to send
  in_.deliver();                       // mutant: forget who waits to receive
  if (orderly && !std::exchange(state_.shut_down, true)) state_.link().shut_down();
}

// The time is measured in parts, so that a time in which this end does not run counts as one of them at most: its
// operations, and the peer's answer, may have waited for it meanwhile.
task<> connection_end::wait_until_closed() {
  constexpr int parts = 4;
  const char* why_not = "the connection did not close in time";
  for (int left = parts; left != 0; --left) {
    try {
      co_await with_timeout(saturated(state_.options.close_timeout) / parts, closed_.wait());
      co_return;
    } catch (const error& why) {
      if (why.code() != errc::timed_out) throw;
    } catch (const std::bad_alloc&) {  // no memory for the timer
      why_not = without_memory_to_close;
      break;
    }
  }
  const detail::stop_shield shield(co_await detail::current_promise());
  state_.abort(why_not);
  co_await closed_.wait();
}

event::wait_operation connection_end::abort_without_memory() noexcept {
  state_.abort(without_memory_to_close);
  return closed_.wait();
}

task<error> connection_end::wait_until_over(connection_end& self, connection_state& state,
                                            std::shared_ptr<link_keys> keys) {
  check_task(state, *keys, "wait for the end of the connection to");
  const inside_call inside(state);
  co_await self.over_.wait();
  co_return state.why_ended().within(state.context("the connection to"));
}

task<> connection_end::close(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys) {
  const std::string what = begin_task(state, *keys, "close the connection to");
  const inside_call inside(state);
  self.begin();
  bool stopped = false;
  try {
    co_await self.wait_until_closed();
  } catch (const error&) {
    stopped = true;
  }
  if (!stopped) co_return;
  const detail::stop_shield shield(co_await detail::current_promise());
  state.abort("close() of the connection was stopped");
  co_await self.closed_.wait();
  throw error(errc::canceled, what);
}

}  // namespace weft::net

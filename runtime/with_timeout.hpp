// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/awaitable.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

namespace detail {

/// While this object lives, the coroutine has a stop token of its own, which stops at a deadline as well as with the
/// former token.
class deadline_guard final : private timer {
 public:
  deadline_guard(promise_base& self, time_point deadline)
      : self_(self), home_(*executor_core::current()), outer_(self.get_stop_token()), source_(outer_) {
    home_.arm(*this, deadline);
    self_.set_stop_token(source_.get_token());
  }
  ~deadline_guard() {
    home_.disarm(*this);
    self_.set_stop_token(outer_);
  }

  /// Whether the deadline, and not a stop from outside, has canceled the operation that failed with `failure`.
  [[nodiscard]] bool caused(const error& failure) const noexcept {
    return passed_ && !outer_.stop_requested() && failure.code() == errc::canceled;
  }

 private:
  void expired() noexcept override {
    passed_ = true;
    source_.request_stop();
  }

  promise_base& self_;
  executor_core& home_;
  stop_token outer_;
  linked_stop_source source_;
  bool passed_ = false;
};

template <class Operation>
task<std::decay_t<await_result<Operation>>> limited(std::optional<time_point> deadline, duration time,
                                                    Operation given) {
  promise_base& self = co_await current_promise();
  deadline_guard guard(self, deadline ? *deadline : later(executor_core::current()->now(), time));
  Operation operation = std::move(given);  // destroyed before `guard`, whose token it listens to
  try {
    if constexpr (std::is_void_v<await_result<Operation>>) {
      co_await std::move(operation);
      co_return;
    } else {
      co_return co_await std::move(operation);
    }
  } catch (const error& failure) {
    if (!guard.caused(failure)) throw;
    throw failure.with_code(errc::timed_out);
  }
}

}  // namespace detail

/// Awaits `operation`, a task or any operation of weft, but stops it at `deadline` and then throws errc::timed_out.
///
/// A stop is a request: the call returns when the operation has ended, with its result or its own failure if that came
/// before the stop. An operation that was posted may still take effect at the peer (error::posted).
template <class Operation>
[[nodiscard]] auto with_deadline(time_point deadline, Operation operation) {
  return detail::limited(std::optional(deadline), duration(), std::move(operation));
}

/// with_deadline() with the time counted from when the call is awaited.
template <class Rep, class Period, class Operation>
[[nodiscard]] auto with_timeout(std::chrono::duration<Rep, Period> time, Operation operation) {
  return detail::limited(std::optional<time_point>(), saturated(time), std::move(operation));
}

}  // namespace weft

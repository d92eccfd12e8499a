// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/system/timer.hpp>

namespace weft {

/// Waits for a point in time; errc::canceled if it is stopped first.
class [[nodiscard("co_await it")]] sleep_operation final : public detail::operation_base, private detail::timer {
 public:
  /// Waits until `deadline`.
  explicit sleep_operation(time_point deadline) noexcept : deadline_(deadline) {}
  /// Waits for `time`, counted from when the operation is awaited.
  explicit sleep_operation(duration time) noexcept : time_(time) {}
  sleep_operation(sleep_operation&& other) noexcept
      : operation_base(std::move(other)), deadline_(other.deadline_), time_(other.time_) {}

  ~sleep_operation() {
    if (armed()) home().disarm(*this);
  }

  void await_resume() const {
    if (canceled()) throw error(errc::canceled, "sleep");
  }
  [[nodiscard]] std::string describe() const override { return "a time"; }

 private:
  void begin() override { home().arm(*this, deadline_ ? *deadline_ : later(home().now(), time_)); }
  void cancel() noexcept override {
    home().disarm(*this);
    finish();
  }
  void expired() noexcept override { finish(); }

  std::optional<time_point> deadline_;
  duration time_{};
};

/// Suspends the task for `time`, counted from when the operation is awaited.
template <class Rep, class Period>
sleep_operation sleep_for(std::chrono::duration<Rep, Period> time) noexcept {
  return sleep_operation(saturated(time));
}

/// Suspends the task until `deadline`.
inline sleep_operation sleep_until(time_point deadline) noexcept { return sleep_operation(deadline); }

/// Lets all other ready tasks run first.
class [[nodiscard("co_await it")]] yield_operation {
 public:
  bool await_ready() const noexcept { return false; }
  template <std::derived_from<detail::promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) noexcept {
    executor_core::current()->give_way(waiter.promise());
  }
  void await_resume() const noexcept {}
};

/// `co_await yield()` lets all other ready tasks run first. It does not notice a stop.
inline yield_operation yield() noexcept { return {}; }

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft::detail {

/// The result of a step, shared by the step and the frame that awaits it.
template <class T>
struct step_outcome {
  using stored = std::conditional_t<std::is_void_v<T>, bool, T>;
  explicit step_outcome(stop_token outer) noexcept : stop(outer) {}

  linked_stop_source stop;
  event ended;
  std::optional<stored> value;
  std::exception_ptr failure;
};

template <class T>
task<> run_step(std::shared_ptr<step_outcome<T>> outcome, task<T> step) {
  promise_base& self = co_await current_promise();
  self.set_stop_token(outcome->stop.get_token());
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(step);
    } else {
      T value = co_await std::move(step);
      outcome->value.emplace(std::move(value));
    }
  } catch (...) {
    outcome->failure = std::current_exception();
  }
  self.set_stop_token(stop_token());
  outcome->ended.set();
}

/// Runs a step of a set-up as a background task, and awaits it. The awaiting frame may be destroyed meanwhile: the step
/// is then asked to stop, and its result is destroyed at its end, for which executor::run() waits. So a step must own
/// all that it uses, including its arguments: the awaiting frame may be destroyed even before the step begins.
template <class T>
task<T> apart(task<T> step) {
  promise_base& self = co_await current_promise();
  const auto outcome = std::make_shared<step_outcome<T>>(self.get_stop_token());
  run_in_background(*executor_core::current(), run_step(outcome, std::move(step)));
  {
    const struct guard {
      step_outcome<T>& of;
      ~guard() {
        of.stop.unfollow();
        if (!of.ended.is_set()) of.stop.request_stop();
      }
    } following{*outcome};
    const stop_shield shield(self);  // a stop goes to the step, and the wait ends with the step
    co_await outcome->ended.wait();
  }
  if (outcome->failure) std::rethrow_exception(outcome->failure);
  if constexpr (!std::is_void_v<T>) co_return std::move(*outcome->value);
}

}  // namespace weft::detail

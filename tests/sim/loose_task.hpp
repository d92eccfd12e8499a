// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/executor.hpp>

#include <coroutine>

#include "kit/standard.hpp"

namespace weft::sim {

/// A coroutine whose frame can be destroyed while it is suspended, as an owner does whose own frame goes.
class loose_task {
 public:
  class promise_type : public detail::promise_base {
   public:
    loose_task get_return_object() noexcept {
      set_handle(std::coroutine_handle<promise_type>::from_promise(*this));
      return loose_task(*this);
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void unhandled_exception() const noexcept { std::terminate(); }
    void return_void() const noexcept {}

   private:
    friend class loose_task;
    bool started_ = false;
  };

  explicit loose_task(promise_type& promise) noexcept : promise_(&promise) {}
  loose_task(loose_task&& other) noexcept : promise_(std::exchange(other.promise_, nullptr)) {}
  loose_task& operator=(loose_task&&) = delete;
  ~loose_task() {
    if (promise_ == nullptr) return;
    if (promise_->started_ && !at_rest()) detail::terminate_because("a test destroyed a task that is about to go on");
    detail::promise_base::destroy_chain(*promise_);
  }

  void start(executor& home) const noexcept {
    promise_->started_ = true;
    core_of(home).ready(*promise_);
  }

  [[nodiscard]] bool ended() const noexcept { return promise_->handle().done(); }
  /// Whether it has ended, or waits for an operation: then it may be destroyed. One that is about to go on may not.
  [[nodiscard]] bool at_rest() const noexcept { return ended() || operation() != nullptr; }
  /// For what it waits, at rest: "a connect". Nothing once it has ended.
  [[nodiscard]] std::string waits_for() const { return ended() ? "nothing" : operation()->describe(); }

 private:
  [[nodiscard]] const detail::operation_base* operation() const noexcept {
    const detail::promise_base* innermost = promise_;
    while (innermost->child() != nullptr) innermost = innermost->child();
    return innermost->operation();
  }

  promise_type* promise_;
};

}  // namespace weft::sim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// An operation that goes on beside the test, which may stop it and look at it. It belongs to a scope.
class attempt : private immovable {
 public:
  template <class Operation>
  attempt(scope& where, Operation operation) {
    where.spawn(drive(state_, std::move(operation)));
  }

  /// Once it has begun: after settle().
  void stop() { state_->stop.value().request_stop(); }
  [[nodiscard]] bool ended() const noexcept { return state_->ended.is_set(); }
  [[nodiscard]] event::wait_operation end() noexcept { return state_->ended.wait(); }
  /// No code if it has succeeded.
  [[nodiscard]] std::error_code code() const { return state_->failure ? state_->failure->code() : std::error_code(); }
  [[nodiscard]] bool succeeded() const noexcept { return ended() && !state_->failure; }
  [[nodiscard]] bool posted() const noexcept { return state_->failure && state_->failure->posted(); }
  [[nodiscard]] std::string words() const { return state_->failure ? state_->failure->what() : ""; }

 private:
  struct state {
    std::optional<linked_stop_source> stop;
    event ended;
    std::optional<error> failure;
  };

  // A task's token goes with the task, and the attempt may stay.
  class follower : private immovable {
   public:
    explicit follower(linked_stop_source& source) noexcept : source_(source) {}
    ~follower() { source_.unfollow(); }

   private:
    linked_stop_source& source_;
  };

  template <class Operation>
  static task<> drive(std::shared_ptr<state> self, Operation operation) {
    detail::promise_base& promise = co_await detail::current_promise();
    const stop_token outer = promise.get_stop_token();
    self->stop.emplace(outer);
    const follower until_the_end(*self->stop);
    promise.set_stop_token(self->stop->get_token());
    try {
      static_cast<void>(co_await std::move(operation));
    } catch (const error& why) {
      self->failure = why;
    }
    promise.set_stop_token(outer);
    self->ended.set();
  }

  std::shared_ptr<state> state_ = std::make_shared<state>();
};

}  // namespace weft::test

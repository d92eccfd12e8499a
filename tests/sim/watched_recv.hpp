// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/recv_operation.hpp>
#include <weft/net/message.hpp>

#include <coroutine>

#include "kit/standard.hpp"

namespace weft::sim {

/// A recv() or recv_into() that can be looked at while its task waits.
template <class Operation>
class watched final : public Operation {
 public:
  explicit watched(Operation&& of) noexcept : Operation(std::move(of)) {}

  /// True from when it has its message, or its connection has ended, even before its task goes on.
  [[nodiscard]] bool is_served() const noexcept { return this->begun() && !this->waiting() && !this->canceled(); }

  /// Awaits it in its place.
  class reference {
   public:
    explicit reference(watched& of) noexcept : of_(&of) {}
    [[nodiscard]] bool await_ready() const noexcept { return of_->await_ready(); }
    template <class Promise>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> waiter) {
      return of_->await_suspend(waiter);
    }
    auto await_resume() { return of_->await_resume(); }

   private:
    watched* of_;
  };
};
using watched_recv = watched<net::recv_operation>;
using watched_recv_into = watched<net::recv_into_operation>;

}  // namespace weft::sim

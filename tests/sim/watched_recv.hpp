// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/recv_operation.hpp>
#include <weft/net/message.hpp>

#include <coroutine>

#include "kit/standard.hpp"

namespace weft::sim {

/// A recv() that can be looked at while its task waits.
class watched_recv final : public net::recv_operation {
 public:
  explicit watched_recv(net::recv_operation&& of) noexcept : recv_operation(std::move(of)) {}

  /// True from when it has its message, or its connection has ended, even before its task goes on.
  [[nodiscard]] bool is_served() const noexcept { return begun() && !waiting() && !canceled(); }

  /// Awaits it in its place.
  class reference {
   public:
    explicit reference(watched_recv& of) noexcept : of_(&of) {}
    [[nodiscard]] bool await_ready() const noexcept { return of_->await_ready(); }
    template <class Promise>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> waiter) {
      return of_->await_suspend(waiter);
    }
    std::optional<net::message> await_resume() { return of_->await_resume(); }

   private:
    watched_recv* of_;
  };
};

}  // namespace weft::sim

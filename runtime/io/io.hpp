// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <cerrno>

namespace weft::detail {

/// One io_operation as an awaiter. Yields the result of the system call, or -errno. If a stop came before its end, any
/// failure becomes -ECANCELED.
class io_wait final : public operation_base, private io_operation {
 public:
  io_wait(io_kind call, descriptor& where) noexcept : io_operation(call) { target = &where; }
  io_wait(io_kind call, descriptor& where, msghdr& what, int flags_of_call) noexcept
      : io_operation(call, where, what, flags_of_call) {}
  io_wait(io_kind call, descriptor& where, sockaddr_storage& address, unsigned length) noexcept : io_wait(call, where) {
    peer = &address;
    peer_length = length;
  }
  /// An offset in a file.
  struct file_offset {
    std::uint64_t bytes;
  };
  io_wait(io_kind call, descriptor& where, msghdr& what, file_offset place) noexcept
      : io_operation(call, where, what, 0) {
    offset = place.bytes;
  }
  io_wait(io_wait&&) = delete;
  io_wait& operator=(io_wait&&) = delete;

  /// A send that completes at once does not suspend the task, except now and then, so that others get a turn.
  template <std::derived_from<promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    if (kind == io_kind::send && ends_now(waiter.promise())) return false;
    if (may_begin(waiter.promise())) home().io().start(*this);
    return true;
  }
  [[nodiscard]] std::string describe() const override { return std::string(name_of(kind)); }
  [[nodiscard]] int await_resume() const noexcept { return canceled() && result_ < 0 ? -ECANCELED : result_; }

 private:
  [[nodiscard]] bool ends_now(const promise_base& waiter) noexcept {
    executor_core& where = *executor_core::current();
    if (waiter.get_stop_token().stop_requested() || !where.may_go_on()) return false;
    const int result = where.io().try_now(*this);
    if (result == -EAGAIN) return false;
    result_ = result;
    return true;
  }
  void cancel() noexcept override {
    if (in_progress()) home().io().cancel(*this);
  }
  void complete(int result) noexcept override {
    result_ = result;
    finish();
  }

  int result_ = -ECANCELED;  // stays so if the operation is stopped before it begins
};

}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/completion_order.hpp>
#include <weft/net/connection/receive_target.hpp>
#include <weft/net/message.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <concepts>
#include <coroutine>
#include <optional>
#include <utility>

namespace weft::net {

class operation_owner;

/// Waits for a message: the result of connection::recv().
class [[nodiscard("co_await it")]] recv_operation : public weft::detail::operation_base,
                                                    public weft::detail::list_hook<recv_operation> {
 public:
  /// Awaiting the operation without an owner is errc::closed.
  explicit recv_operation(operation_owner* owner) noexcept : recv_operation(owner, false) {}
  recv_operation(recv_operation&& other) noexcept
      : operation_base(std::move(other)), owner_(other.owner_), expects_message_(other.expects_message_) {}
  recv_operation& operator=(recv_operation&&) = delete;
  ~recv_operation() {
    if (waiting() && begun()) [[unlikely]]
      abandon();
  }

  /// Does not suspend the task if a message has arrived and it is the task's turn to go on.
  template <std::derived_from<weft::detail::promise_base> Promise>
  [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> waiter) {
    const taken how = take_now(waiter.promise());
    if (how == taken::no) operation_base::await_suspend(waiter);
    return how != taken::ended;
  }
  /// The message, or an empty result: see connection::recv(). Throws weft::error.
  std::optional<message> await_resume() {
    check();
    return std::move(message_);
  }
  [[nodiscard]] std::string describe() const override { return "recv"; }

 protected:
  /// With `expects_message`, the peer's orderly close is an error.
  recv_operation(operation_owner* owner, bool expects_message) noexcept
      : owner_(owner), expects_message_(expects_message) {}

 private:
  friend class receiving;
  friend class connection;
  friend class recv_into_operation;
  friend class recv_or_throw_operation;

  [[nodiscard]] taken take_now(weft::detail::promise_base& waiter) noexcept;
  void begin() override;
  void cancel() noexcept override;
  void abandon() noexcept;
  void check() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[noreturn, gnu::cold]] void throw_failure() const;
  [[gnu::cold]] void fail_without_owner();

  operation_owner* owner_;
  bool expects_message_;              // the peer's close is an error
  receive_target* target_ = nullptr;  // the memory of a recv_into_operation; else null
  std::optional<message> message_;
  std::optional<error> failure_;
};

/// The result of connection::recv_or_throw().
class [[nodiscard("co_await it")]] recv_or_throw_operation final : public recv_operation {
 public:
  /// Made by connection::recv_or_throw().
  explicit recv_or_throw_operation(operation_owner* owner) noexcept : recv_operation(owner, true) {}
  recv_or_throw_operation(recv_or_throw_operation&&) noexcept = default;

  /// The message. Throws weft::error; errc::peer_closed where recv() would yield an empty result.
  message await_resume() {
    check();
    return *std::move(message_);
  }
};

/// The result of connection::recv_into().
class [[nodiscard("co_await it")]] recv_into_operation : public recv_operation {
 public:
  /// Made by connection::recv_into().
  recv_into_operation(operation_owner* owner, const sink& memory) noexcept : recv_operation(owner), memory_(memory) {
    target_ = &memory_;
  }
  recv_into_operation(recv_into_operation&& other) noexcept
      : recv_operation(std::move(other)), memory_(std::move(other.memory_)) {
    target_ = &memory_;
  }

  /// The receipt of the message; empty where recv() would yield an empty result. Throws weft::error.
  std::optional<receipt> await_resume() {
    check();
    return std::exchange(memory_.said, std::nullopt);
  }
  [[nodiscard]] std::string describe() const override { return "recv_into"; }

 private:
  receive_target memory_;
};

}  // namespace weft::net

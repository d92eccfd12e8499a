// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/message.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/operation.hpp>

#include <optional>

namespace weft::net {

class connection_core;

/// Waiting for a message: what connection::recv() returns.
class [[nodiscard]] recv_operation : public weft::detail::operation_base {
 public:
  explicit recv_operation(connection_core& core) noexcept : core_(&core) {}
  recv_operation(recv_operation&& other) noexcept : operation_base(std::move(other)), core_(other.core_) {}
  recv_operation& operator=(recv_operation&&) = delete;
  ~recv_operation();

  /// The message; empty after the peer has closed in order. Throws weft::error.
  std::optional<message> await_resume();

 private:
  friend class connection_core;
  friend class connection;

  void begin() override;
  void cancel() noexcept override;

  connection_core* core_;
  recv_operation* previous_ = nullptr;
  recv_operation* next_ = nullptr;
  std::optional<message> message_;
  std::optional<error> failure_;
};

/// What connection::recv_or_throw() returns.
class [[nodiscard]] recv_or_throw_operation final : public recv_operation {
 public:
  using recv_operation::recv_operation;
  recv_or_throw_operation(recv_or_throw_operation&&) noexcept = default;

  /// The message. Throws weft::error; errc::peer_closed after the peer has closed in order.
  message await_resume();
};

}  // namespace weft::net

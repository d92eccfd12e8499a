// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/transfer.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

namespace weft::net {

/// Several operations that are awaited as one: the result of connection::batch().
class [[nodiscard("co_await it")]] batch_operation final : public weft::detail::operation_base, private transfer_group {
 public:
  batch_operation(batch_operation&& other) noexcept
      : operation_base(std::move(other)), owner_(other.owner_), members_(other.members_) {}
  batch_operation& operator=(batch_operation&&) = delete;
  ~batch_operation();

  /// Throws weft::error: the reason why the batch was refused, the error of the first member in posting order that
  /// failed, or errc::canceled if the batch was stopped before it began.
  void await_resume();
  [[nodiscard]] std::string describe() const override;

 private:
  friend class connection;
  friend class sending;

  /// Awaiting a batch without an owner is errc::closed.
  batch_operation(operation_owner* owner, std::span<transfer> members) noexcept : owner_(owner), members_(members) {}

  void begin() override;
  void cancel() noexcept override;
  // transfer_group
  void member_ended() noexcept override {
    if (--unfinished_ == 0) finish();
  }
  [[nodiscard]] bool stopped() const noexcept override { return canceled(); }

  [[nodiscard]] bool claim_members() noexcept;
  void release_members(std::size_t count) noexcept;

  operation_owner* owner_;
  std::span<transfer> members_;
  bool claimed_ = false;  // the members point to this batch
  std::size_t unfinished_ = 0;
  std::optional<error> refused_;  // why the batch was refused, before any member was posted
};

}  // namespace weft::net

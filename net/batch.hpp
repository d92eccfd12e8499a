// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/transfer.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/operation.hpp>

#include <cstddef>
#include <optional>
#include <span>

namespace weft::net {

class connection_core;

/// Several operations that are awaited as one: what connection::batch() returns.
class [[nodiscard]] batch_operation final : public weft::detail::operation_base {
 public:
  batch_operation(batch_operation&& other) noexcept
      : operation_base(std::move(other)), core_(other.core_), members_(other.members_) {}
  batch_operation& operator=(batch_operation&&) = delete;
  ~batch_operation();

  /// Throws weft::error: of the members that failed, the first one's in posting order.
  void await_resume() const;

 private:
  friend class connection;
  friend class connection_core;
  friend class transfer;

  batch_operation(connection_core& core, std::span<transfer> members) noexcept : core_(&core), members_(members) {}

  void begin() override;
  void cancel() noexcept override;
  void member_ended() noexcept {
    if (--unfinished_ == 0) finish();
  }

  connection_core* core_;
  std::span<transfer> members_;
  std::size_t unfinished_ = 0;
  std::optional<error> refused_;  // before any was posted
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/transfer.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/operation.hpp>

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <variant>

namespace weft::net {

class connection_core;

/// The operations of a batch: a named array of transfer, of fetch_operation, or of transfer* where they are mixed. It
/// refers to that array, which outlives the batch.
class batch_members {
 public:
  batch_members() = default;  ///< none
  template <std::convertible_to<std::span<transfer>> Range>
  batch_members(Range&& all) noexcept : all_(std::span<transfer>(std::forward<Range>(all))) {}
  template <std::convertible_to<std::span<fetch_operation>> Range>
  batch_members(Range&& all) noexcept : all_(std::span<fetch_operation>(std::forward<Range>(all))) {}
  template <std::convertible_to<std::span<transfer* const>> Range>
  batch_members(Range&& all) noexcept : all_(std::span<transfer* const>(std::forward<Range>(all))) {}

  [[nodiscard]] std::size_t size() const noexcept {
    return std::visit([](const auto& all) { return all.size(); }, all_);
  }
  /// Null only where the user's array says so.
  [[nodiscard]] transfer* operator[](std::size_t index) const noexcept {
    return std::visit([index](const auto& all) { return pointer_to(all[index]); }, all_);
  }

 private:
  static transfer* pointer_to(transfer& item) noexcept { return &item; }
  static transfer* pointer_to(transfer* item) noexcept { return item; }

  std::variant<std::span<transfer>, std::span<fetch_operation>, std::span<transfer* const>> all_;
};

/// Several operations that are awaited as one: what connection::batch() returns.
class [[nodiscard]] batch_operation final : public weft::detail::operation_base {
 public:
  batch_operation(batch_operation&& other) noexcept
      : operation_base(std::move(other)), core_(other.core_), members_(other.members_) {}
  batch_operation& operator=(batch_operation&&) = delete;
  ~batch_operation();

  /// Throws weft::error: of the members that failed, the first one's in posting order.
  void await_resume();

 private:
  friend class connection;
  friend class connection_core;
  friend class transfer;

  batch_operation(connection_core& core, batch_members members) noexcept : core_(&core), members_(members) {}

  void begin() override;
  void cancel() noexcept override;
  void member_ended() noexcept {
    if (--unfinished_ == 0) finish();
  }
  [[nodiscard]] bool claim_members() noexcept;
  void release_members(std::size_t count) noexcept;

  connection_core* core_;
  batch_members members_;
  bool claimed_ = false;  // its members refer to it
  std::size_t unfinished_ = 0;
  std::optional<error> refused_;  // before any was posted
};

}  // namespace weft::net

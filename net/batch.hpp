// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/transfer.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>

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
  batch_members(std::span<transfer> all) noexcept : all_(all) {}
  batch_members(std::span<fetch_operation> all) noexcept : all_(all) {}
  batch_members(std::span<transfer* const> all) noexcept : all_(all) {}
  template <class Array>
    requires std::convertible_to<Array&, std::span<transfer>>
  batch_members(Array& all) noexcept : all_(std::span<transfer>(all)) {}
  template <class Array>
    requires std::convertible_to<Array&, std::span<fetch_operation>>
  batch_members(Array& all) noexcept : all_(std::span<fetch_operation>(all)) {}
  template <class Array>
    requires std::convertible_to<Array&, std::span<transfer* const>>
  batch_members(Array& all) noexcept : all_(std::span<transfer* const>(all)) {}

  [[nodiscard]] std::size_t size() const noexcept {
    if (const auto* const all = std::get_if<std::span<transfer>>(&all_)) return all->size();
    if (const auto* const all = std::get_if<std::span<fetch_operation>>(&all_)) return all->size();
    return std::get_if<std::span<transfer* const>>(&all_)->size();
  }
  /// Null only where the user's array says so.
  [[nodiscard]] transfer* operator[](std::size_t index) const noexcept {
    if (const auto* const all = std::get_if<std::span<transfer>>(&all_)) return &(*all)[index];
    if (const auto* const all = std::get_if<std::span<fetch_operation>>(&all_)) return &(*all)[index];
    return (*std::get_if<std::span<transfer* const>>(&all_))[index];
  }

 private:
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
  [[nodiscard]] std::string describe() const override;

 private:
  friend class connection;
  friend class connection_core;
  friend class transfer;

  batch_operation(connection_core* core, batch_members members) noexcept : core_(core), members_(members) {}

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

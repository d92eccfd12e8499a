// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace weft::mr::detail {

class write_counter_core;

/// A number under which peers report their writes to this process, where the fabric does not see them. Reports count as
/// long as this object lives. The number is random, and peers learn it from the memory's descriptor alone, so that
/// others can hardly guess it. One table of the process holds all numbers. Move-only; add() is thread-safe.
class told_counter {
 public:
  told_counter() noexcept = default;
  /// Draws a number; reports under it are added to `counts`. Throws weft::error, or std::bad_alloc.
  explicit told_counter(std::shared_ptr<write_counter_core> counts);
  told_counter(told_counter&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  told_counter& operator=(told_counter&& other) noexcept {
    told_counter taken(std::move(other));
    std::swap(number_, taken.number_);
    return *this;
  }
  ~told_counter();

  /// The number; 0 for an object that was default-constructed or moved from.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

  /// Counts writes that a peer has reported. Does nothing if no counter has this number now.
  static void add(std::uint32_t number, std::uint32_t writes) noexcept;

 private:
  std::uint32_t number_ = 0;
};

}  // namespace weft::mr::detail

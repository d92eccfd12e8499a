// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace weft::mr::detail {

class write_counter_core;

/// A number by which peers tell this process what they have written, where no fabric sees that for itself: as long as
/// it lives, what is told counts. Nobody guesses it: it is drawn at random, and goes to those alone who get the
/// memory's descriptor. One table for the process. Move-only; thread-safe.
class told_counter {
 public:
  told_counter() noexcept = default;
  /// Throws weft::error, or std::bad_alloc.
  explicit told_counter(std::shared_ptr<write_counter_core> counts);
  told_counter(told_counter&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  told_counter& operator=(told_counter&& other) noexcept {
    told_counter taken(std::move(other));
    std::swap(number_, taken.number_);
    return *this;
  }
  ~told_counter();

  /// 0: there is none.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

  /// A peer says that it has written so many times. Does nothing if there is no such number, or no longer.
  static void add(std::uint32_t number, std::uint32_t writes) noexcept;

 private:
  std::uint32_t number_ = 0;
};

}  // namespace weft::mr::detail

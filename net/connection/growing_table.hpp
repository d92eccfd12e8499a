// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace weft::net {

/// Rows that are made a few at a time, when there is need of them, and stay where they are.
///
/// Most connections never use all the operations that they may have with the transport at a time; with many
/// connections, tables for all of them would be most of what an idle one costs.
template <class Row>
class growing_table {
 public:
  static constexpr std::size_t step = 8;

  /// Makes the first `step` rows of at most `limit`. Throws std::bad_alloc.
  explicit growing_table(std::size_t limit) : limit_(limit) {
    blocks_.reserve((limit + step - 1) / step);
    if (!grow_to(std::min(limit, step))) throw std::bad_alloc();
  }

  /// How many there may be.
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }

  /// Makes rows until there are so many. False if memory is short; nothing is lost then.
  [[nodiscard]] bool grow_to(std::size_t rows) noexcept {
    while (blocks_.size() * step < rows) {
      std::unique_ptr<Row[]> more(new (std::nothrow) Row[step]);
      if (more == nullptr) return false;
      blocks_.push_back(std::move(more));
    }
    return true;
  }

  /// A row that has been made.
  [[nodiscard]] Row& operator[](std::size_t row) noexcept { return blocks_[row / step][row % step]; }

 private:
  std::size_t limit_;
  std::vector<std::unique_ptr<Row[]>> blocks_;
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "condition.hpp"

namespace copy {

/// How many chunks of the pool the transfers of this process may hold together. Each takes its share at once, and makes
/// do with less when others are at work: transfers that went on to wait for more, each with some in hand, could wait
/// for one another forever.
class chunk_budget {
 public:
  explicit chunk_budget(std::size_t chunks) noexcept : free_(chunks) {}

  /// Chunks that are a transfer's until it ends.
  class share {
   public:
    share(chunk_budget& from, std::size_t chunks) noexcept : from_(&from), chunks_(chunks) {}
    share(share&& other) noexcept : from_(other.from_), chunks_(std::exchange(other.chunks_, 0)) {}
    share& operator=(share&&) = delete;
    ~share() {
      if (chunks_ != 0) from_->give_back(chunks_);
    }
    [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }

   private:
    chunk_budget* from_;
    std::size_t chunks_;
  };

  /// `wanted` chunks or fewer, but one at least: waits for that.
  [[nodiscard]] weft::task<share> take(std::size_t wanted) {
    const auto some_free = [this] { return free_ != 0; };
    co_await returned_.until(some_free);
    const std::size_t taken = std::min(free_, wanted);
    free_ -= taken;
    co_return share(*this, taken);
  }

 private:
  void give_back(std::size_t chunks) noexcept {
    free_ += chunks;
    returned_.notify();
  }

  std::size_t free_;
  condition returned_;
};

}  // namespace copy

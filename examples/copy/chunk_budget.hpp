// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "condition.hpp"

namespace copy {

/// How many chunks of the pool the transfers of this process may hold together, and those of one peer's address. Each
/// takes its share at once, and makes do with less when others are at work: transfers that went on to wait for more,
/// each with some in hand, could wait for one another forever. Peers whose transfers do not go on hold up one another.
class chunk_budget {
 public:
  chunk_budget(std::size_t chunks, std::size_t chunks_of_a_peer) noexcept
      : free_(chunks), most_of_a_peer_(chunks_of_a_peer) {}

  /// Chunks that are a transfer's until it ends.
  class share {
   public:
    share(chunk_budget& from, std::string peer, std::size_t chunks) noexcept
        : from_(&from), peer_(std::move(peer)), chunks_(chunks) {}
    share(share&& other) noexcept
        : from_(other.from_), peer_(std::move(other.peer_)), chunks_(std::exchange(other.chunks_, 0)) {}
    share& operator=(share&&) = delete;
    ~share() {
      if (chunks_ != 0) from_->give_back(peer_, chunks_);
    }
    [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }

   private:
    chunk_budget* from_;
    std::string peer_;
    std::size_t chunks_;
  };

  /// `wanted` chunks or fewer, but one at least: waits for that.
  [[nodiscard]] weft::task<share> take(std::size_t wanted, std::string peer) {
    const auto some_free = [&] { return free_for(peer) != 0; };
    co_await returned_.until(some_free);
    const std::size_t taken = std::min(free_for(peer), wanted);
    used_[peer] += taken;
    free_ -= taken;
    co_return share(*this, std::move(peer), taken);
  }

 private:
  [[nodiscard]] std::size_t free_for(const std::string& peer) const {
    const auto found = used_.find(peer);
    return std::min(free_, most_of_a_peer_ - (found == used_.end() ? 0 : found->second));
  }
  void give_back(const std::string& peer, std::size_t chunks) noexcept {
    free_ += chunks;
    const auto found = used_.find(peer);
    if ((found->second -= chunks) == 0) used_.erase(found);
    returned_.notify();
  }

  std::size_t free_;
  const std::size_t most_of_a_peer_;
  std::unordered_map<std::string, std::size_t> used_;  // by peers that use any
  condition returned_;
};

}  // namespace copy

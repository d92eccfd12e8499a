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
/// each with some in hand, could wait for one another forever. A transfer whose peer does not go on is given up soon
/// where another one waits for its chunks: session::receive().
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
    ~share() { give_back(); }
    /// Before its end.
    void give_back() noexcept {
      if (chunks_ != 0) from_->give_back(peer_, std::exchange(chunks_, 0));
    }
    [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }
    /// Whether another transfer waits for them.
    [[nodiscard]] bool is_wanted() const {
      if (chunks_ == 0) return false;
      return from_->of_peers_.at(peer_).waiting != 0 || (from_->free_ == 0 && from_->waiting_ != 0);
    }

   private:
    chunk_budget* from_;
    std::string peer_;
    std::size_t chunks_;
  };

  /// `wanted` chunks or fewer, but one at least: waits for that. One where others of that address wait.
  [[nodiscard]] weft::task<share> take(std::size_t wanted, std::string peer) {
    const auto some_free = [&] { return free_for(peer) != 0; };
    const waiter here(*this, peer);
    co_await returned_.until(some_free);
    chunks_of_peer& own = of_peers_.at(peer);
    const std::size_t taken = own.waiting > 1 ? 1 : std::min(free_for(peer), wanted);
    own.used += taken;
    free_ -= taken;
    co_return share(*this, std::move(peer), taken);
  }

 private:
  struct chunks_of_peer {
    std::size_t used = 0;
    std::size_t waiting = 0;  // transfers
  };

  class waiter {
   public:
    waiter(chunk_budget& at, const std::string& peer) : at_(at), peer_(peer) {
      ++at.of_peers_[peer].waiting;
      ++at.waiting_;
    }
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;
    ~waiter() {
      --at_.of_peers_.find(peer_)->second.waiting;
      --at_.waiting_;
      at_.forget_unused(peer_);
    }

   private:
    chunk_budget& at_;
    const std::string peer_;
  };

  [[nodiscard]] std::size_t free_for(const std::string& peer) const {
    return std::min(free_, most_of_a_peer_ - of_peers_.at(peer).used);
  }
  void give_back(const std::string& peer, std::size_t chunks) noexcept {
    free_ += chunks;
    of_peers_.find(peer)->second.used -= chunks;
    forget_unused(peer);
    returned_.notify();
  }
  void forget_unused(const std::string& peer) noexcept {
    const auto found = of_peers_.find(peer);
    if (found->second.used == 0 && found->second.waiting == 0) of_peers_.erase(found);
  }

  std::size_t free_;
  const std::size_t most_of_a_peer_;
  std::size_t waiting_ = 0;                                   // transfers of all peers
  std::unordered_map<std::string, chunks_of_peer> of_peers_;  // those with any
  condition returned_;
};

}  // namespace copy

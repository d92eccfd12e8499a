// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>

namespace weft::sim {

/// Lets one of several threads run at a time: whoever holds it says who is next.
class baton {
 public:
  /// One more who can hold it, and how they are called: the first is 0, and holds it.
  std::size_t add() {
    const std::lock_guard lock(mutex_);
    handed_.emplace_back();
    return handed_.size() - 1;
  }

  /// Waits until it is theirs.
  void take(std::size_t who) {
    std::unique_lock lock(mutex_);
    handed_[who].wait(lock, [&] { return holder_ == who; });
  }
  /// From its holder, who must not touch what the others do before take() returns.
  void give(std::size_t who) {
    std::condition_variable* told = nullptr;
    {
      const std::lock_guard lock(mutex_);
      holder_ = who;
      told = &handed_[who];
    }
    told->notify_one();
  }

 private:
  std::mutex mutex_;
  std::size_t holder_ = 0;
  std::deque<std::condition_variable> handed_;  // stay where they are
};

}  // namespace weft::sim

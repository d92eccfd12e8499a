// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::detail {

/// A mutex whose lock and unlock are inline, and one atomic instruction each without contention.
class light_mutex {
 public:
  void lock() noexcept {
    std::uint32_t was = unlocked;
    if (state_.compare_exchange_strong(was, locked, std::memory_order_acquire)) return;
    wait_and_lock();
  }
  void unlock() noexcept {
    if (state_.exchange(unlocked, std::memory_order_release) == contended) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t unlocked = 0;
  static constexpr std::uint32_t locked = 1;
  static constexpr std::uint32_t contended = 2;  // a thread may be waiting

  [[gnu::noinline]] void wait_and_lock() noexcept {
    while (state_.exchange(contended, std::memory_order_acquire) != unlocked) state_.wait(contended);
  }

  std::atomic<std::uint32_t> state_{unlocked};
};

}  // namespace weft::detail

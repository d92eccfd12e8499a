// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/remote_waiter.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

namespace weft::mr::detail {

/// A counter's view of a waiting task: the count that the task waits for.
class remote_writes_request : public weft::detail::remote_waiter {
 protected:
  explicit remote_writes_request(std::uint64_t writes) noexcept : wanted_(writes) {}
  remote_writes_request(remote_writes_request&& other) noexcept
      : remote_waiter(std::move(other)), wanted_(other.wanted_) {}
  ~remote_writes_request() = default;

  std::uint64_t wanted_;

 private:
  friend class write_counter_core;
};

/// A count, and the tasks that wait for it. Kept alive by its handles, by the regions that count with it, and by tasks
/// that wait.
///
/// Counting takes no lock as long as no waiter is due: a waiter publishes the count that it waits for, and then loads
/// the count; add() changes the count, and then loads what is published. memory_order_seq_cst puts these accesses in
/// one total order, so that at least one side sees what the other has stored.
class write_counter_core {
 public:
  /// Adds to the count. From any thread; a task that this call wakes sees what the caller has written before.
  void add(std::uint32_t writes = 1) noexcept {
    if (count_.fetch_add(writes) + writes >= next_due_.load()) [[unlikely]]
      wake_those_due();
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return count_.load(); }

  /// Makes `waiter` wait. False if its count has been reached already.
  [[nodiscard]] bool wait(remote_writes_request& waiter) noexcept;
  /// Withdraws the waiter. False if it has been woken meanwhile.
  [[nodiscard]] bool give_up(remote_writes_request& waiter) noexcept;

 private:
  void wake_those_due() noexcept;
  void update_next_due() noexcept;

  static constexpr std::uint64_t nobody = std::numeric_limits<std::uint64_t>::max();

  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> next_due_{nobody};  // the least count that a task waits for; `nobody` if none waits
  std::mutex mutex_;
  weft::detail::remote_waiters waiters_;
};

}  // namespace weft::mr::detail

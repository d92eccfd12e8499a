// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/remote_waiter.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

namespace weft::mr::detail {

/// What a counter knows of a task that waits: until when.
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
/// Counting takes no lock as long as nobody is due: who waits first makes known what it waits for and then looks at the
/// count; who counts does it the other way round. Both in the one total order of memory_order_seq_cst.
class write_counter_core {
 public:
  /// So many more. From any thread; what was written before is seen by whoever is woken.
  void add(std::uint32_t writes = 1) noexcept {
    if (count_.fetch_add(writes) + writes >= next_due_.load()) [[unlikely]]
      wake_those_due();
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return count_.load(); }

  /// False if what it waits for has happened already.
  [[nodiscard]] bool wait(remote_writes_request& waiter) noexcept;
  /// False if it has been woken meanwhile.
  [[nodiscard]] bool give_up(remote_writes_request& waiter) noexcept;

 private:
  void wake_those_due() noexcept;
  void update_next_due() noexcept;

  static constexpr std::uint64_t nobody = std::numeric_limits<std::uint64_t>::max();

  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> next_due_{nobody};  // the least that anybody waits for
  std::mutex mutex_;
  weft::detail::remote_waiters waiters_;
};

}  // namespace weft::mr::detail

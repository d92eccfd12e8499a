// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/core/remote_waiter.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace weft::mr {

namespace detail {

/// What counts, and who waits for it. Kept by its handles, by the regions that count with it and by those who wait.
///
/// Counting takes no lock as long as nobody is due: who waits first makes known what it waits for and then looks at the
/// count; who counts does it the other way round. Both in the one total order of memory_order_seq_cst.
class write_counter_core {
 public:
  /// One more. From any thread; what was written before is seen by whoever is woken.
  void add() noexcept {
    if (count_.fetch_add(1) + 1 >= next_due_.load()) [[unlikely]]
      wake_those_due();
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return count_.load(); }

 private:
  friend class mr::remote_writes_operation;

  /// False if what it waits for has happened already.
  [[nodiscard]] bool wait(remote_writes_operation& waiter) noexcept;
  /// False if it has been woken meanwhile.
  [[nodiscard]] bool give_up(remote_writes_operation& waiter) noexcept;
  void wake_those_due() noexcept;
  void update_next_due() noexcept;

  static constexpr std::uint64_t nobody = std::numeric_limits<std::uint64_t>::max();

  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> next_due_{nobody};  // the least that anybody waits for
  std::mutex mutex_;
  weft::detail::remote_waiters waiters_;
};

}  // namespace detail

/// Waiting until peers have written so and so many times. See region::remote_writes() and write_counter::wait_for().
class remote_writes_operation final : public weft::detail::remote_waiter {
 public:
  remote_writes_operation(std::shared_ptr<detail::write_counter_core> counter, std::uint64_t wanted,
                          region_pin region) noexcept
      : counter_(std::move(counter)), wanted_(wanted), region_(std::move(region)) {}
  remote_writes_operation(remote_writes_operation&& other) noexcept;
  ~remote_writes_operation();

  bool await_ready() const noexcept { return counter_->value() >= wanted_; }
  /// How many there have been. Throws errc::canceled if it was stopped first.
  std::uint64_t await_resume();
  [[nodiscard]] std::string describe() const override { return "writes of peers"; }

 private:
  friend class detail::write_counter_core;
  void begin() override;
  void cancel() noexcept override;

  std::shared_ptr<detail::write_counter_core> counter_;
  std::uint64_t wanted_;
  region_pin region_;
};

/// Counts the writes and atomic operations with which peers change one region or several, by their own keys or through
/// windows: region::bind(). A write counts once, when all of it is in its place; one of no bytes counts too. A
/// compare_swap counts if it has found what it expected.
///
/// Thread-safe. Regions keep counting when it is gone. See fi_mr_bind(3), FI_REMOTE_WRITE.
class write_counter {
 public:
  write_counter() : core_(std::make_shared<detail::write_counter_core>()) {}

  /// How many there have been.
  [[nodiscard]] std::uint64_t value() const noexcept { return core_->value(); }
  /// `co_await counter.wait_for(n)` returns once there have been at least n, and how many there have been.
  /// errc::canceled if it is stopped first.
  [[nodiscard]] remote_writes_operation wait_for(std::uint64_t writes) const noexcept { return {core_, writes, {}}; }

 private:
  friend class region;
  std::shared_ptr<detail::write_counter_core> core_;
};

}  // namespace weft::mr

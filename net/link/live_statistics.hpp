// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/statistics.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/live_number.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace weft::net {

using weft::detail::live_number;

/// The counters of a connection: changed on its executor, read by any thread that asks the device for statistics.
/// The list_hook is for the device's list of the counters of all open connections.
struct live_statistics : weft::detail::list_hook<live_statistics> {
  struct operations {
    live_number posted;
    live_number bytes;
    live_number failed;

    [[nodiscard]] connection_statistics::operations snapshot() const noexcept {
      return {.posted = posted.get(), .bytes = bytes.get(), .failed = failed.get()};
    }
  };
  operations sends;
  operations writes;
  operations reads;
  operations flushes;
  operations atomics;
  live_number waits_for_credits;
  live_number messages_received;
  live_number bytes_received;
  live_number late_accesses;
  live_number in_flight;
  live_number waiting;
  live_number retired;
  live_number retired_bytes;
  /// When an operation last completed, or when the first began if none has completed since, by the executor's clock.
  /// 0: nothing is in flight or waits.
  live_number stalled_since;

  live_statistics() = default;
  live_statistics(const live_statistics&) = delete;
  live_statistics& operator=(const live_statistics&) = delete;
  ~live_statistics() = default;

  [[nodiscard]] bool has_work() const noexcept { return in_flight.get() != 0 || waiting.get() != 0; }
  /// Notes that an operation begins to wait, or is posted.
  void begun(time_point now) noexcept {
    if (stalled_since.get() == 0) stalled_since.set(to_number(now));
  }
  /// Notes that an operation has completed. Called after the counters have been changed.
  void completed(time_point now) noexcept { stalled_since.set(has_work() ? to_number(now) : 0); }
  /// Notes that an operation was withdrawn before it was posted. Called after the counters have been changed.
  void withdrawn() noexcept {
    if (!has_work()) stalled_since.set(0);
  }
  [[nodiscard]] connection_statistics snapshot(time_point now) const noexcept;

 private:
  [[nodiscard]] static std::uint64_t to_number(time_point when) noexcept {
    return static_cast<std::uint64_t>(std::max<duration::rep>(when.time_since_epoch().count(), 1));
  }
};

/// The counters of a device's set-ups, changed on any thread.
struct set_up_statistics {
  std::atomic<std::uint64_t> half_open{0};
  std::atomic<std::uint64_t> in_progress{0};
  std::atomic<std::uint64_t> connects_failed{0};
  std::atomic<std::uint64_t> accepts_failed{0};
  std::atomic<std::uint64_t> requests_failed{0};
  std::atomic<std::uint64_t> accept_errors{0};

  static void count(std::atomic<std::uint64_t>& what) noexcept { what.fetch_add(1, std::memory_order_relaxed); }

  /// Adds one to a counter for as long as this object lives.
  class present {
   public:
    explicit present(std::atomic<std::uint64_t>& what) noexcept : what_(what) { count(what_); }
    present(const present&) = delete;
    present& operator=(const present&) = delete;
    ~present() { what_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    std::atomic<std::uint64_t>& what_;
  };
};

}  // namespace weft::net

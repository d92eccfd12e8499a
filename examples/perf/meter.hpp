// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "histogram.hpp"

namespace perf {

/// How much to do: whatever ends first.
struct budget {
  std::uint64_t operations = UINT64_MAX;
  weft::duration time = weft::duration::max();
};

/// Hands out operations until the budget is spent, and keeps how long they took, and the longest time in which none was
/// done. Shared by everything that runs at the same time. Allocates only when it is made.
class meter {
 public:
  meter(const budget& limits, weft::time_point start)
      : operations_(limits.operations), start_(start), time_(limits.time), end_(weft::later(start, limits.time)) {}

  /// Whether another operation may start, at `now`. The first one may, even if the time was over before it began.
  [[nodiscard]] bool claim(weft::time_point now) noexcept {
    last_ = now;
    if (claimed_ == operations_ || (now >= end_ && claimed_ != 0)) return false;
    ++claimed_;
    return true;
  }
  /// An operation has taken from `begin` to `end`.
  void record(weft::time_point begin, weft::time_point end) {
    latencies_.record(end - begin);
    longest_pause_ = std::max(longest_pause_, end - last_done_);
    last_done_ = end;
  }

  /// From 0 to 1: how much of the budget is used up.
  [[nodiscard]] double done() const noexcept {
    const double of_operations = static_cast<double>(claimed_) / static_cast<double>(operations_);
    const double of_time = std::chrono::duration<double>(last_ - start_) / std::chrono::duration<double>(time_);
    return std::clamp(std::max(of_operations, of_time), 0.0, 1.0);
  }
  [[nodiscard]] const histogram& latencies() const noexcept { return latencies_; }
  [[nodiscard]] weft::duration longest_pause() const noexcept { return longest_pause_; }

 private:
  std::uint64_t operations_;
  std::uint64_t claimed_ = 0;
  weft::time_point start_;
  weft::time_point last_ = start_;
  weft::time_point last_done_ = start_;
  weft::duration time_;
  weft::time_point end_;
  histogram latencies_;
  weft::duration longest_pause_{};
};

}  // namespace perf

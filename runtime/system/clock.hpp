// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace weft {

using duration = std::chrono::steady_clock::duration;  ///< the type of timeouts and pauses
using time_point =
    std::chrono::steady_clock::time_point;  ///< the type of deadlines; virtual time under a virtual clock

/// Converts a time given by a user into a duration. A time that is too long becomes duration::max(), which means never;
/// a time that is too far below zero becomes duration::min(). `time` must not be NaN.
template <class Rep, class Period>
[[nodiscard]] constexpr duration saturated(std::chrono::duration<Rep, Period> time) noexcept {
  using seconds = std::chrono::duration<long double>;
  if (seconds(time) >= seconds(duration::max())) return duration::max();
  if (seconds(time) <= seconds(duration::min())) return duration::min();
  return std::chrono::duration_cast<duration>(time);
}

/// `start` + `time`, or time_point::max() if that would overflow: duration::max() means never.
[[nodiscard]] constexpr time_point later(time_point start, duration time) noexcept {
  return time > time_point::max() - start ? time_point::max() : start + time;
}

/// later() for a time given by a user: see saturated().
template <class Rep, class Period>
[[nodiscard]] constexpr time_point later(time_point start, std::chrono::duration<Rep, Period> time) noexcept {
  return later(start, saturated(time));
}

/// An executor's source of the time: a seam, so that a test can run on virtual time.
class clock {
 public:
  /// The time now, which never goes back.
  [[nodiscard]] virtual time_point now() noexcept = 0;

  /// The machine's steady clock, see clock_gettime(2).
  [[nodiscard]] static clock& steady() noexcept;

 protected:
  ~clock() = default;  // an executor never owns a clock
};

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace weft {

using duration = std::chrono::steady_clock::duration;
using time_point = std::chrono::steady_clock::time_point;

/// `start` + `time`, or the end of time where that would overflow: duration::max() means never.
[[nodiscard]] constexpr time_point later(time_point start, duration time) noexcept {
  return time > time_point::max() - start ? time_point::max() : start + time;
}

/// The same for times as users give them, of which the largest do not fit a duration.
[[nodiscard]] constexpr time_point later(time_point start, std::chrono::milliseconds time) noexcept {
  const auto most = std::chrono::floor<std::chrono::milliseconds>(time_point::max() - start);
  return time > most ? time_point::max() : start + time;
}

/// What an executor takes for the time: a seam, so that a test can run on virtual time.
class clock {
 public:
  [[nodiscard]] virtual time_point now() noexcept = 0;

  /// The machine's steady clock, see clock_gettime(2).
  [[nodiscard]] static clock& steady() noexcept;

 protected:
  ~clock() = default;  // an executor never owns a clock
};

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <algorithm>
#include <optional>

namespace weft::detail {

/// How long an executor under poll_policy::adaptive spins for completions before it sleeps: twice as long as recent
/// completions took to come, within bounds, because a short spin costs less than the sleep that it saves. If they took
/// longer than the longest spin, the executor sleeps at once. It also does so for a while after several spins in vain:
/// if both sides of a connection share a core, or a container has only one, the peer cannot answer while this side
/// spins.
class spin_window {
 public:
  explicit spin_window(duration longest) noexcept : longest_(longest), typical_gap_(longest / 2) {}

  [[nodiscard]] duration longest() const noexcept { return longest_; }
  /// Returns how long to spin next; zero means to sleep at once. Call once for each wait: it counts a rest down.
  [[nodiscard]] duration next() noexcept {
    if (sleeps_left_ != 0) {
      --sleeps_left_;
      return duration::zero();
    }
    if (typical_gap_ > longest_) return duration::zero();
    return std::clamp(2 * typical_gap_, longest_ / 5, longest_);
  }

  void found_after(duration gap) noexcept {
    learn(gap);
    in_vain_ = 0;
    rest_ = shortest_rest;
  }

  /// Called when a spin was in vain and the executor sleeps next.
  void found_nothing() noexcept {
    if (++in_vain_ < most_in_vain) return;
    --in_vain_;  // so that the next spin in vain begins a rest at once
    sleeps_left_ = rest_;
    rest_ = std::min(2 * rest_, longest_rest);
  }

  void slept(duration gap) noexcept { learn(gap); }

 private:
  static constexpr unsigned most_in_vain = 4;
  static constexpr unsigned shortest_rest = 64;
  static constexpr unsigned longest_rest = 1024;  // in sleeps, which take milliseconds under load

  // Caps the gap, because a long sleep says only that the gap is long; so a burst after a quiet hour is noticed soon.
  void learn(duration gap) noexcept { typical_gap_ += (std::min(gap, 4 * longest_) - typical_gap_) / 8; }

  duration longest_;
  duration typical_gap_;  // a moving average of the gaps, each counted as at most 4 * longest_
  unsigned in_vain_ = 0;  // spins in vain in a row, at most most_in_vain - 1
  unsigned rest_ = shortest_rest;
  unsigned sleeps_left_ = 0;  // sleeps that are left of the current rest
};

/// The time in which an executor that another loop drives has nothing to do. The executor may spin at first, for as
/// long as the spin_window says.
class idle_gap {
 public:
  /// Called when there is nothing to do. Returns whether to look again at once.
  [[nodiscard]] bool spins_on(time_point now, spin_window& window) noexcept {
    if (!since_) {
      since_ = now;
      spin_ = window.next();
    }
    if (now - *since_ < spin_) return true;
    if (spin_ != duration::zero()) window.found_nothing();
    spin_ = duration::zero();
    return false;
  }
  [[nodiscard]] bool has_begun() const noexcept { return since_.has_value(); }
  /// Call when something has come and has_begun() is true. `slept` says whether the executor slept meanwhile.
  void end(time_point now, bool slept, spin_window& window) noexcept {
    const duration gap = now - *since_;
    slept ? window.slept(gap) : window.found_after(gap);
    since_.reset();
  }

 private:
  std::optional<time_point> since_;  // when spins_on() first found nothing to do; empty after end()
  duration spin_{};                  // how long the executor spins from since_ on; zero once it spins no more
};

}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <algorithm>

namespace weft::detail {

/// How long an executor under poll_policy::adaptive looks for completions before it sleeps: for twice as long as they
/// lately took to come, within bounds: a short look costs less than the sleep that it spares. After several looks in
/// vain it sleeps at once for a while: where both ends of a connection
/// share a core, or a container has one, the peer cannot answer while this end looks.
class spin_window {
 public:
  explicit spin_window(duration longest) noexcept : longest_(longest), typical_gap_(longest / 2) {}

  /// For the next look: zero is to sleep at once.
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

  /// The executor sleeps now, although it has looked.
  void found_nothing() noexcept {
    if (++in_vain_ < most_in_vain) return;
    --in_vain_;  // the next in vain is one too many
    sleeps_left_ = rest_;
    rest_ = std::min(2 * rest_, longest_rest);
  }

  void slept(duration gap) noexcept { learn(gap); }

 private:
  static constexpr unsigned most_in_vain = 4;
  static constexpr unsigned shortest_rest = 64;
  static constexpr unsigned longest_rest = 1024;  // a peer that has moved to another core is noticed in milliseconds

  // A long sleep says only that the gap is long: cap it, so that a burst after a quiet hour is noticed soon.
  void learn(duration gap) noexcept { typical_gap_ += (std::min(gap, 4 * longest_) - typical_gap_) / 8; }

  duration longest_;
  duration typical_gap_;  // a moving average
  unsigned in_vain_ = 0;  // looks in a row
  unsigned rest_ = shortest_rest;
  unsigned sleeps_left_ = 0;  // of a rest
};

}  // namespace weft::detail

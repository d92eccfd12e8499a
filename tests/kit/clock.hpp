// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <atomic>
#include <cstdint>

namespace weft::test {

/// A clock that a test sets forward, so that a long time is over soon. Between such moves it stands still, or goes with
/// the machine's steady clock.
class manual_clock final : public clock {
 public:
  enum class between_moves : std::uint8_t { stands, goes };

  explicit manual_clock(between_moves how = between_moves::stands) noexcept : goes_(how == between_moves::goes) {}

  [[nodiscard]] time_point now() noexcept override { return (goes_ ? clock::steady().now() : start_) + ahead_; }
  void advance(duration time) noexcept { ahead_ += time; }
  /// Only forward, and only on one that stands.
  void advance_to(time_point moment) noexcept { ahead_ = moment - start_; }

 private:
  const bool goes_;
  const time_point start_ = clock::steady().now();
  duration ahead_{};
};

/// A clock that stands until a thread lets it go, once, and then goes with the machine's steady clock.
class held_clock final : public clock {
 public:
  [[nodiscard]] time_point now() noexcept override {
    const duration behind = behind_;
    return behind == duration::max() ? start_ : clock::steady().now() - behind;
  }
  void let_go() noexcept { behind_ = clock::steady().now() - start_; }

 private:
  const time_point start_ = clock::steady().now();
  std::atomic<duration> behind_{duration::max()};
};

}  // namespace weft::test

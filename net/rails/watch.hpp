// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/patience.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/timer.hpp>

#include <array>
#include <chrono>
#include <optional>

namespace weft::net::rails {

/// Looks at the rails of a connection while something is due from the peer, and gives up silent ones.
///
/// A peer whose program or machine is busy is silent on all rails. So a rail that does not move is given up only while
/// another rail shows the sign of life that is missing: of the program or, if a device alone completes what is in
/// flight, of the machine.
class watch final : private weft::detail::timer {
 public:
  /// The link whose rails are watched.
  class subject {
   public:
    /// Acts on time limits that have passed. False if the connection has ended.
    [[nodiscard]] virtual bool look_at_limits() noexcept = 0;
    /// The next time limit; empty if there is none.
    [[nodiscard]] virtual std::optional<time_point> next_limit() const noexcept = 0;
    /// Whether something is with a rail, control messages included, or the peer owes an answer.
    [[nodiscard]] virtual bool waits_for_rails() const noexcept = 0;
    /// Whether something is with this rail, or the peer owes an answer over it.
    [[nodiscard]] virtual bool waits_for(const rail& which) noexcept = 0;

   protected:
    ~subject() = default;
  };

  watch(rail_owner& owner, subject& what) noexcept : owner_(owner), subject_(what) {}

  /// Begins to look: first within the shortest pause, then for as long as there is a limit, or the peer owes something.
  void begin() noexcept {
    if (!is_soon()) arm_soon();
  }
  /// Whether it will look within the shortest pause.
  [[nodiscard]] bool is_soon() const noexcept { return armed() && !is_long_pause_; }
  void stop() noexcept;
  void rail_opened(const rail& which) noexcept;

 private:
  // The observations of one rail.
  struct seen {
    bool is_suspected = false;                // silent between the last two looks, although something was due over it
    unsigned silent_looks = 0;                // looks since then at which another rail has shown that the peer is there
    std::optional<time_point> given_up_at{};  // when the rail was given up for its silence
  };

  void arm_soon() noexcept;
  void arm_at(time_point when) noexcept;
  void expired() noexcept override;
  [[nodiscard]] std::optional<time_point> next_look() const noexcept;
  rail::sign look_for_silence() noexcept;
  void ask_rails() noexcept;

  rail_owner& owner_;
  subject& subject_;
  patience patience_;
  duration pause_{};            // the pause between two looks; grows while no rail shows a sign of life
  bool is_long_pause_ = false;  // armed for longer than the shortest pause
  std::array<seen, max_rails> seen_{};
};

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/frame_allocator.hpp>
#include <weft/runtime/system/clock.hpp>

#include <chrono>
#include <optional>
#include <utility>

namespace weft::detail {

/// Decides when an executor gives freed frames back, if it keeps more than frame_bytes_kept_when_idle: after a sleep as
/// long as `period`, or after many shorter sleeps.
class idle_frames {
 public:
  static constexpr duration period = std::chrono::milliseconds(100);

  [[nodiscard]] static bool are_many() noexcept { return frames_of_thread.room < room_of_few && keeps_too_many(); }
  static void give_back() noexcept { give_back_frames(frame_bytes_kept_when_idle); }

  /// Gives frames back after a long sleep, or after many sleeps. Called when the executor has slept with many frames.
  void slept(duration time) noexcept {
    constexpr unsigned most_sleeps = 4096;
    if (time >= period || ++sleeps_ % most_sleeps == 0) give_back();
  }
  /// Called around such a sleep of an executor that another loop drives.
  void fall_asleep(time_point now) noexcept { asleep_since_ = now; }
  void wake_up(time_point now) noexcept {
    const auto since = std::exchange(asleep_since_, std::nullopt);
    if (since) slept(now - *since);
  }

 private:
  // With more room left the frames are few for sure, and this check is cheaper.
  static constexpr std::size_t room_of_few = most_frame_bytes_kept - frame_bytes_kept_when_idle;
  [[nodiscard]] static bool keeps_too_many() noexcept { return frame_bytes_kept() > frame_bytes_kept_when_idle; }

  unsigned sleeps_ = 0;
  std::optional<time_point> asleep_since_;
};

}  // namespace weft::detail

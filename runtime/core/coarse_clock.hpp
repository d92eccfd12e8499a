// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

namespace weft::detail {

/// A clock that is read seldom, because reading it takes longer than most of what an executor does.
class coarse_clock {
 public:
  explicit coarse_clock(clock& source) noexcept : source_(&source) {}

  [[nodiscard]] clock& source() const noexcept { return *source_; }
  [[nodiscard]] time_point now() const noexcept { return source_->now(); }
  /// The time that the last read() or peek() has found.
  [[nodiscard]] time_point recent() const noexcept { return recent_; }
  time_point read() noexcept {
    fresh_ = true;
    return recent_ = now();
  }
  /// Reads the clock for recent() alone: read_once() does not count this as a read.
  time_point peek() noexcept { return recent_ = now(); }
  /// read(), unless it was read since the last grow_old().
  time_point read_once() noexcept { return fresh_ ? recent_ : read(); }
  /// Called at the end of a turn, so that the next read_once() reads the clock.
  void grow_old() noexcept { fresh_ = false; }

 private:
  friend struct debugger_layout;

  clock* source_;
  time_point recent_{};
  bool fresh_ = false;  // read in this turn, or in the wait before it
};

}  // namespace weft::detail

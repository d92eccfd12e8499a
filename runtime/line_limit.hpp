// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace weft {

/// Keeps peers from filling a log: the first lines of each second are written, the others only counted. Ask next()
/// before each line. From any thread.
class line_limit {
 public:
  static constexpr unsigned lines_a_second = 20;  ///< the most lines that are written in each second

  /// Counts a line. Returns nothing if the line must be left out, else how many lines were left out since the last one
  /// that was written.
  [[nodiscard]] std::optional<std::uint64_t> next(time_point now) noexcept {
    const std::lock_guard lock(mutex_);
    if (now - begun_ >= std::chrono::seconds(1)) {
      begun_ = now;
      written_ = 0;
    }
    if (written_ == lines_a_second) {
      ++left_out_;
      return std::nullopt;
    }
    ++written_;
    return std::exchange(left_out_, 0);
  }

 private:
  std::mutex mutex_;
  time_point begun_{};  // when the current second began
  unsigned written_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace weft

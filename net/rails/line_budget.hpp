// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <algorithm>

namespace weft::net::rails {

/// A limit for lines that are written: `burst` at once, and one more in each `pause`.
class line_budget {
 public:
  line_budget(unsigned burst, duration pause) noexcept : pause_(pause), ahead_(pause * (burst - 1)) {}

  [[nodiscard]] bool has(time_point now) const noexcept { return next_ <= now + ahead_; }
  /// Takes a line from the budget; false if there is none left.
  [[nodiscard]] bool take(time_point now) noexcept {
    if (!has(now)) return false;
    next_ = std::max(next_, now) + pause_;
    return true;
  }

 private:
  duration pause_;
  duration ahead_;
  time_point next_{};  // when the next line would be due if there were exactly one in each pause
};

}  // namespace weft::net::rails

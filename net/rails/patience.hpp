// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

namespace weft::net::rails {

/// The number of looks in a row that may find a rail silent, while another rail shows that the peer is there: at the
/// last of them the rail is given up. The number adapts to slow links and busy machines, which take their time for a
/// slice. It is, within limits, one more than twice the longest silence after which a rail lately moved, or was given
/// up and soon came back; it shrinks with time.
class patience {
 public:
  static constexpr unsigned least = 3;
  static constexpr unsigned most = 25;
  static constexpr unsigned looks_to_forget = 64;

  [[nodiscard]] unsigned looks() const noexcept { return std::clamp(2 * longest_ + 1, least, most); }
  /// Notes that a rail has moved after `silent_looks`, or was given up after them and came back soon.
  void moved_after(unsigned silent_looks) noexcept { longest_ = std::max(longest_, silent_looks); }
  /// Counts a look. The patience shrinks every looks_to_forget looks.
  void age() noexcept {
    if (++age_ % looks_to_forget == 0 && longest_ != 0) --longest_;
  }

 private:
  unsigned longest_ = 0;
  unsigned age_ = 0;
};

}  // namespace weft::net::rails

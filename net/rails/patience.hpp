// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

namespace weft::net::rails {

/// How many looks in a row a rail may be silent, while another one shows that the peer is there, before it is given up.
/// It adapts to rails that were silent and moved after all, or were back at once, because a slow link or a busy machine
/// takes its time for a slice: more than twice as long as those, and less again once that has not happened for a while.
class patience {
 public:
  static constexpr unsigned least = 3;
  static constexpr unsigned most = 25;
  static constexpr unsigned looks_to_forget = 64;

  [[nodiscard]] unsigned looks() const noexcept { return std::clamp(2 * longest_ + 1, least, most); }
  /// A rail has moved after so many silent looks, or could have.
  void moved_after(unsigned silent_looks) noexcept { longest_ = std::max(longest_, silent_looks); }
  /// Another look.
  void age() noexcept {
    if (++age_ % looks_to_forget == 0 && longest_ != 0) --longest_;
  }

 private:
  unsigned longest_ = 0;
  unsigned age_ = 0;
};

}  // namespace weft::net::rails

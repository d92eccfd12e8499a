// SPDX-License-Identifier: Apache-2.0
#include <weft/net/back_off.hpp>

#include <algorithm>
#include <random>

namespace weft::net {

back_off::back_off(const retry_options& when)
    : bound_(saturated(std::max(when.first_pause, std::chrono::milliseconds(1)))),
      longest_(std::max(saturated(when.max_pause), bound_)),
      random_(when.seed ? *when.seed : std::random_device{}()) {}

// SplitMix64, whose state is one number. The bias of the remainder is less than one in 2^30 for pauses of up to 10 s.
duration back_off::next() {
  random_ += 0x9E37'79B9'7F4A'7C15;
  std::uint64_t drawn = random_;
  drawn = (drawn ^ (drawn >> 30)) * 0xBF58'476D'1CE4'E5B9;
  drawn = (drawn ^ (drawn >> 27)) * 0x94D0'49BB'1331'11EB;
  drawn ^= drawn >> 31;
  const duration::rep least = bound_.count() / 2;
  const auto values = static_cast<std::uint64_t>(bound_.count() - least) + 1;
  const duration pause(least + static_cast<duration::rep>(drawn % values));
  bound_ = bound_ > longest_ / 2 ? longest_ : bound_ * 2;
  return pause;
}

}  // namespace weft::net

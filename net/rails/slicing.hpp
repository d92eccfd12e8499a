// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net::rails {

/// Sizes by which transfers are cut into slices for several rails. A simulation uses smaller values, so that few bytes
/// make many slices.
struct slicing {
  std::uint64_t slice_bytes = std::uint64_t{128} << 10;
  /// The smallest transfer that is spread. A smaller one is over before a second rail would help.
  std::uint64_t least_spread_bytes = std::uint64_t{256} << 10;
  /// The smallest list element that is spread: smaller than a single transfer, because more elements follow it.
  std::uint64_t least_listed_bytes = std::uint64_t{16} << 10;
};

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net::rails {

/// How large transfers are cut for several rails. A simulation takes less, so that few bytes have many slices.
struct slicing {
  std::uint64_t slice_bytes = std::uint64_t{128} << 10;
  /// Of a transfer that is spread. Less is over before a second rail would help.
  std::uint64_t least_spread_bytes = std::uint64_t{256} << 10;
  /// Of an element of a list, which has others behind it.
  std::uint64_t least_listed_bytes = std::uint64_t{16} << 10;
};

}  // namespace weft::net::rails

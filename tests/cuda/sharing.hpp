// SPDX-License-Identifier: Apache-2.0
// What the tests of memory that two processes copy between directly have in common with the other process.
#pragma once

#include "kit/standard.hpp"

namespace weft::test {

inline constexpr std::size_t shared_bytes = (std::size_t{20} << 20) + 12'345;

/// Bytes that differ from one `seed` to the next.
inline void fill_with(std::span<std::byte> bytes, unsigned seed) {
  for (std::size_t i = 0; i != bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + (i >> 8) * 7 + seed) & 0xFF);
}

/// From the other process, about its memory and its driver.
struct sharing_state {
  bool holds = false;           ///< what was asked for
  bool tried_to_open = false;   ///< once it was told to fail that
  std::size_t pinned = 0;       ///< ranges of host memory: 0 unless something was copied through such
  std::size_t open = 0;         ///< handles
  std::uint32_t immediate = 0;  ///< the last immediate data
};

}  // namespace weft::test

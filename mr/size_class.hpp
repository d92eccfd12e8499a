// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>

// The sizes of a pool's blocks: four to a power of two, so that at most a quarter of what was asked for goes to waste.
namespace weft::mr::detail {

inline constexpr std::size_t smallest_block = 256;

/// The class of the smallest blocks that hold `bytes`.
[[nodiscard]] constexpr std::size_t class_of(std::size_t bytes) noexcept {
  if (bytes <= smallest_block) return 0;
  const std::size_t last = bytes - 1;
  const auto power = static_cast<std::size_t>(std::bit_width(last)) - 1;
  const std::size_t quarter = last >> (power - 2) & 3;
  return (power - 8) * 4 + quarter + 1;
}

/// The size of the blocks of a class: multiples of 64 bytes.
[[nodiscard]] constexpr std::size_t class_bytes(std::size_t index) noexcept {
  return (4 + index % 4) << (index / 4 + 6);
}

static_assert(class_bytes(0) == 256 && class_bytes(1) == 320 && class_bytes(4) == 512 && class_bytes(5) == 640);
static_assert(class_of(256) == 0 && class_of(257) == 1 && class_of(320) == 1 && class_of(321) == 2 &&
              class_of(512) == 4);

}  // namespace weft::mr::detail

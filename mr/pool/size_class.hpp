// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

// The sizes of a pool's blocks: 256 bytes, then four sizes to each power of two. A block is less than a quarter larger
// than the request, or has 256 bytes.
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

/// Executors cache no larger blocks, because using one takes longer than the lock.
inline constexpr std::size_t largest_cached = std::size_t{64} << 10;
/// How many classes executors cache.
inline constexpr std::size_t cached_classes = class_of(largest_cached) + 1;

/// The classes of sizes up to largest_cached, indexed by the size in units of 64 bytes, rounded up: one look-up where
/// the compiler does not know the size.
inline constexpr auto class_table = [] {
  std::array<std::uint8_t, largest_cached / 64 + 1> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(class_of(i * 64));
  return all;
}();
/// class_of() up to largest_cached.
[[nodiscard]] constexpr std::size_t cached_class_of(std::size_t bytes) noexcept {
  return class_table[(bytes + 63) / 64];
}

/// The size of the blocks of a class: a multiple of 64 bytes.
[[nodiscard]] constexpr std::size_t class_bytes(std::size_t index) noexcept {
  return (4 + index % 4) << (index / 4 + 6);
}

static_assert(class_bytes(0) == 256 && class_bytes(1) == 320 && class_bytes(4) == 512 && class_bytes(5) == 640);
static_assert(class_of(256) == 0 && class_of(257) == 1 && class_of(320) == 1 && class_of(321) == 2 &&
              class_of(512) == 4);

}  // namespace weft::mr::detail

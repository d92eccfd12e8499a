// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace weft::test {

/// The byte at a position of what has this seed: it differs from one seed to the next, and from any shift of itself.
[[nodiscard]] constexpr std::byte pattern(std::size_t position, unsigned seed) noexcept {
  return static_cast<std::byte>(position * 131 + (position >> 8) * 7 + (position >> 16) * 3 + seed * 29 + 1);
}

inline void fill(std::span<std::byte> bytes, unsigned seed) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(i, seed);
}

/// Whether they are what fill() has put there.
[[nodiscard]] inline bool holds(std::span<const std::byte> bytes, unsigned seed) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern(i, seed)) return false;
  }
  return true;
}

/// Whether each is `value`.
[[nodiscard]] inline bool is_all(std::span<const std::byte> bytes, std::byte value) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [=](std::byte each) { return each == value; });
}
[[nodiscard]] inline bool is_zero(std::span<const std::byte> bytes) noexcept { return is_all(bytes, std::byte{0}); }

}  // namespace weft::test

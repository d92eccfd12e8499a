// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

// Numbers in the frames of the native protocol, least significant byte first. The caller must have checked the range.
namespace weft::net::little_endian {

// Converts between this machine's byte order and that of the frames.
template <std::unsigned_integral Number>
[[nodiscard]] Number reorder(Number value) noexcept {
  if constexpr (std::endian::native == std::endian::little) return value;
  Number swapped = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    swapped = static_cast<Number>(swapped << 8 | (value >> (8 * i) & 0xff));
  return swapped;
}

template <std::unsigned_integral Number>
void put(std::span<std::byte> out, std::size_t at, Number value) noexcept {
  value = reorder(value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <std::unsigned_integral Number>
[[nodiscard]] Number get(std::span<const std::byte> from, std::size_t at) noexcept {
  Number value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return reorder(value);
}

}  // namespace weft::net::little_endian

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

// Numbers in the frames of the native protocol, least significant byte first. The caller has checked the range.
namespace weft::net::little_endian {

template <std::unsigned_integral Number>
void put(std::span<std::byte> out, std::size_t at, Number value) noexcept {
  for (std::size_t i = 0; i < sizeof value; ++i) out[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral Number>
[[nodiscard]] Number get(std::span<const std::byte> from, std::size_t at) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value |= std::to_integer<std::uint64_t>(from[at + i]) << (8 * i);
  return static_cast<Number>(value);
}

}  // namespace weft::net::little_endian

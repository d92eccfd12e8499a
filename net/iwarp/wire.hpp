// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// Big-endian fields of the MPA, DDP and RDMAP headers. Compilers turn these loops into one bswap.
namespace weft::net::iwarp {

template <class Number>
[[nodiscard]] inline Number load_be(const std::byte* from) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value = value << 8 | std::to_integer<std::uint64_t>(from[i]);
  return static_cast<Number>(value);
}

template <class Number>
inline void store_be(std::byte* to, Number value) noexcept {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> 8 * (sizeof(Number) - 1 - i));
}

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Big-endian fields of the MPA, DDP and RDMAP headers, at any alignment.
namespace weft::net::iwarp {

inline std::uint8_t swap_bytes(std::uint8_t value) noexcept { return value; }
inline std::uint16_t swap_bytes(std::uint16_t value) noexcept { return __builtin_bswap16(value); }
inline std::uint32_t swap_bytes(std::uint32_t value) noexcept { return __builtin_bswap32(value); }
inline std::uint64_t swap_bytes(std::uint64_t value) noexcept { return __builtin_bswap64(value); }

template <class Number>
[[nodiscard]] inline Number load_be(const std::byte* from) noexcept {
  Number value;
  std::memcpy(&value, from, sizeof value);
  return std::endian::native == std::endian::big ? value : swap_bytes(value);
}

template <class Number>
inline void store_be(std::byte* to, Number value) noexcept {
  if (std::endian::native != std::endian::big) value = swap_bytes(value);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace weft::net::iwarp

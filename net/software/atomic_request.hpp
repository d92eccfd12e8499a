// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net::software {

/// What an atomic request asks for; other codes are reserved.
enum class atomic_operation : std::uint8_t { fetch_add = 0, compare_swap = 2 };

/// Asks the peer to change eight bytes of its memory at once, and for what they held before.
struct atomic_request {
  static constexpr std::size_t bytes = 52;
  static constexpr std::uint64_t every_bit = ~std::uint64_t{0};

  atomic_operation operation = atomic_operation::fetch_add;
  std::uint32_t id = 0;  ///< the response carries it back
  std::uint32_t stag = 0;
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;  ///< what to add, or to put there
  std::uint64_t mask = 0;     ///< fetch_add: the top bit of each field but the last; compare_swap: the bits to change
  std::uint64_t compare = 0;
  std::uint64_t compare_mask = every_bit;
};

/// What eight bytes that hold `value` will hold after `request`: RFC 7306 sections 5.1.1 and 5.1.2.
[[nodiscard]] std::uint64_t apply(const atomic_request& request, std::uint64_t value) noexcept;
/// Whether `request` puts anything there: not a compare_swap that finds something else.
[[nodiscard]] bool changes(const atomic_request& request, std::uint64_t value) noexcept;

}  // namespace weft::net::software

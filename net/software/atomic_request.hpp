// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net::software {

/// The operation codes of an atomic request; all others are reserved.
enum class atomic_operation : std::uint8_t { fetch_add = 0, compare_swap = 2 };

/// Asks the peer to change eight bytes of its memory atomically, and to return their previous value.
struct atomic_request {
  static constexpr std::size_t bytes = 52;
  static constexpr std::uint64_t every_bit = ~std::uint64_t{0};

  atomic_operation operation = atomic_operation::fetch_add;
  std::uint32_t id = 0;  ///< echoed in the response
  std::uint32_t stag = 0;
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;  ///< the value to add or to store
  std::uint64_t mask = 0;     ///< fetch_add: the top bits of fields, bit 63 optional; compare_swap: the bits to change
  std::uint64_t compare = 0;
  std::uint64_t compare_mask = every_bit;
};

/// The value of eight bytes that held `value`, after `request`: RFC 7306 sections 5.1.1 and 5.1.2.
[[nodiscard]] std::uint64_t apply(const atomic_request& request, std::uint64_t value) noexcept;
/// Whether `request` stores anything: false for a compare_swap that does not find the expected value.
[[nodiscard]] bool changes(const atomic_request& request, std::uint64_t value) noexcept;

}  // namespace weft::net::software

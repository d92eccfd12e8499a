// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvcache {

/// Which block it is. What it holds is a function of that, so that a block that is wrong, torn or in another's place is
/// noticed.
struct block_name {
  std::uint64_t sequence = 0;
  std::uint32_t layer = 0;
  std::uint32_t page = 0;
};

/// Sizes of blocks are multiples of it.
inline constexpr std::size_t word_bytes = sizeof(std::uint64_t);

/// Writes what the block holds.
void fill_block(std::span<std::byte> block, const block_name& name) noexcept;

/// The place of the first word that is wrong, in bytes; empty if there is none.
[[nodiscard]] std::optional<std::size_t> first_wrong(std::span<const std::byte> block, const block_name& name) noexcept;

}  // namespace kvcache

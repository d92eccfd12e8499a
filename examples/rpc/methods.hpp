// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <rpc/server.hpp>

namespace rpc {

/// The methods of `rpc serve`:
///
///   echo TEXT        the text
///   sum NUMBER...    their sum
///   sleep MS         the same number, so many milliseconds later
///   fetch BYTES      so many bytes (64K, 16M) of a pattern, written to the caller's memory
///   fail TEXT        fails with these words
[[nodiscard]] method_table standard_methods();

/// "512", "64K", "16M", "1G". Throws std::invalid_argument.
[[nodiscard]] std::uint64_t parse_bytes(std::string_view text);

/// What `fetch` yields: the part of it that begins at `offset`, a multiple of eight.
void fill_pattern(std::span<std::byte> part, std::uint64_t offset) noexcept;
[[nodiscard]] bool is_pattern(std::span<const std::byte> part, std::uint64_t offset) noexcept;

}  // namespace rpc

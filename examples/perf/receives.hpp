// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "protocol.hpp"

// For how many operations of the other side each side is prepared, and the memory that this takes.
namespace perf {

/// Receives for messages of `size` bytes of which `depth` are sent at a time: twice as many, so that credits are back
/// before they are used up, but no more than 64 MiB of memory unless two take more.
[[nodiscard]] constexpr std::uint16_t receives_at_depth(std::uint16_t depth, std::uint32_t size) noexcept {
  constexpr std::size_t memory_bytes = std::size_t{64} << 20;
  const std::size_t affordable = std::max<std::size_t>(memory_bytes / size, 2);
  return static_cast<std::uint16_t>(
      std::clamp<std::size_t>(affordable, 2, std::max<std::size_t>(std::size_t{2} * depth, 16)));
}

/// Reads that may be outstanding at the server.
[[nodiscard]] constexpr std::uint16_t reads_at_depth(std::uint16_t depth) noexcept {
  return std::clamp<std::uint16_t>(depth, 16, 1024);
}

/// What receives take of a pool: those of the connection's own protocol as well, and size classes that are up to a
/// quarter too large.
[[nodiscard]] constexpr std::uint64_t memory_for_receives(std::uint16_t receives, std::uint32_t size) noexcept {
  constexpr std::uint64_t own = 4;
  return (receives + own) * (std::uint64_t{size} + size / 4);
}

}  // namespace perf

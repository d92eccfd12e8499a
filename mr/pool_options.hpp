// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>

namespace weft {
class system_calls;
}

namespace weft::mr {

/// How a pool is made.
struct pool_options {
  /// The limit for all arenas together. On a device that pins, it is lowered, with a warning, to half of the process's
  /// locked-memory limit (`ulimit -l`) if that is less.
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t arena_bytes = std::size_t{4} << 20;  ///< the size of one arena; larger buffers get an arena of their own
  double receive_fraction = 0.5;                   ///< of max_bytes, for budget::receive; the rest is for budget::send
  bool huge_pages = true;  ///< try huge pages, of 1 GiB too if arenas are as large; the statistics show the result
  /// The NUMA node whose memory is preferred; empty: the device's, if known; -1: none in particular. The statistics
  /// show the result.
  std::optional<int> numa_node = std::nullopt;
  weft::system_calls* system_calls = nullptr;  ///< replaced in tests; null: the kernel's
};
static_assert(std::is_trivially_destructible_v<pool_options>);

}  // namespace weft::mr

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
  /// Of all arenas together. On a device that pins, half of the locked-memory limit is the most, where the process has
  /// one (`ulimit -l`): a warning is reported then.
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t arena_bytes = std::size_t{4} << 20;  ///< of one arena; larger buffers get an arena of their own
  double receive_fraction = 0.5;                   ///< of max_bytes, for budget::receive; the rest is for budget::send
  bool huge_pages = true;  ///< try to have them, also of 1 GiB where arenas are as large; what came
                           ///< of it is in the statistics
  /// The NUMA node whose memory is preferred; empty: the device's, if it says one; -1: none in particular. The same.
  std::optional<int> numa_node = std::nullopt;
  weft::system_calls* system_calls = nullptr;  ///< seam: null is the kernel
};
static_assert(std::is_trivially_destructible_v<pool_options>);

}  // namespace weft::mr

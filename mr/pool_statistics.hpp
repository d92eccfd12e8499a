// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/budget.hpp>
#include <weft/mr/system/mapping.hpp>
#include <weft/runtime/metrics.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::mr {

/// What one budget of a pool has in hand. Sizes are those of the blocks, which are up to a quarter larger than what was
/// asked for.
struct budget_statistics {
  std::size_t max_bytes = 0;     ///< of all its arenas
  std::size_t arenas = 0;        ///< how many
  std::size_t arena_bytes = 0;   ///< in arenas: mapped and registered
  std::size_t in_use_bytes = 0;  ///< in buffers, and pinned
  std::size_t cached_bytes = 0;  ///< kept at hand by executors
  std::size_t waiting = 0;       ///< allocations that wait
};

/// What a pool has in hand.
struct pool_statistics {
  budget_statistics send;              ///< budget::send
  budget_statistics receive;           ///< budget::receive
  page_kind pages = page_kind::small;  ///< of the arena that was made last
  std::string
      pages_reason;  ///< why they are not as large as could be, in words; empty if they are, or were not asked for
  int node = -1;     ///< NUMA node that it prefers; -1: none
  std::string node_reason;       ///< why it is not the one that was asked for, in words; empty if it is
  std::string max_bytes_reason;  ///< why the limit is lower than pool_options::max_bytes; empty if it is not
  std::uint64_t failures = 0;    ///< how often an arena could not be made
  std::string last_failure;      ///< why, the last time; empty if all could

  /// Those of one budget.
  [[nodiscard]] const budget_statistics& of(budget which) const noexcept {
    return which == budget::send ? send : receive;
  }
};

/// "65536 of at most 65536 bytes are in use, 0 more are kept at hand by executors, 3 allocations wait".
[[nodiscard]] std::string to_string(const budget_statistics& what);

/// Adds what a pool has in hand to metrics, under a name for the pool.
void add_to(metrics& all, const pool_statistics& what, std::string_view name);

}  // namespace weft::mr

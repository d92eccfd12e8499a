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

/// The state of one budget of a pool. The sizes of buffers are those of their blocks: at least 256 bytes, and up to a
/// quarter more than was requested. Executors change what they keep at hand without a lock, so in_use_bytes and
/// cached_bytes are approximate while executors run.
struct budget_statistics {
  std::size_t max_bytes = 0;      ///< the limit for all its arenas
  std::size_t arenas = 0;         ///< the number of arenas, without those that are being made or freed
  std::size_t arena_bytes = 0;    ///< in arenas, including those that are being made or freed
  std::size_t pending_bytes = 0;  ///< the part of arena_bytes in arenas that are being made or freed
  std::size_t in_use_bytes = 0;   ///< in buffers, pinned by operations, or gathered by pool::allocate_all()
  std::size_t cached_bytes = 0;   ///< kept at hand by executors
  std::size_t waiting = 0;        ///< allocations that wait
};

/// The state of a pool.
struct pool_statistics {
  budget_statistics send;              ///< budget::send
  budget_statistics receive;           ///< budget::receive
  page_kind pages = page_kind::small;  ///< of the arena that was made last
  std::string pages_reason;            ///< why larger pages were not used; empty if none were refused or requested
  int node = -1;                       ///< NUMA node that the last arena prefers; -1: none
  std::string node_reason;             ///< why it is not the requested one; empty if it is
  std::string max_bytes_reason;        ///< why the limit is lower than pool_options::max_bytes; empty if it is not
  std::uint64_t failures = 0;          ///< how often an arena could not be made
  std::string last_failure;            ///< the last error; empty if there was none

  /// The state of one budget.
  [[nodiscard]] const budget_statistics& of(budget which) const noexcept {
    return which == budget::send ? send : receive;
  }
};

/// "65536 of at most 65536 bytes are in use, 0 more are kept at hand by executors, 3 allocations wait".
[[nodiscard]] std::string to_string(const budget_statistics& what);

/// Adds the state to metrics, labelled with the pool's name.
void add_to(metrics& all, const pool_statistics& what, std::string_view name);

}  // namespace weft::mr

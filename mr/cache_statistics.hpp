// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::mr {

/// The state of a cache, and its counts so far.
struct cache_statistics {
  std::size_t regions = 0;           ///< kept now
  std::size_t bytes = 0;             ///< of the regions that are kept
  std::size_t registered_bytes = 0;  ///< of all regions, including those that are only leased or being deregistered
  std::uint64_t hits = 0;            ///< leases of memory that was registered already
  std::uint64_t misses = 0;          ///< registrations that were begun
  std::uint64_t shared = 0;          ///< leases that waited for another lease's registration
  std::uint64_t evictions = 0;       ///< regions dropped to make room, for a larger one, or by clear()
  std::uint64_t invalidations = 0;   ///< kept regions dropped because their memory was invalidated, replaced or freed
  /// Registrations that were not kept: for want of room, because they cannot be watched or lie in a kept region, or
  /// because their device memory was freed or the cache was destroyed meanwhile.
  std::uint64_t not_kept = 0;
  std::uint64_t begun_anew = 0;  ///< registrations that were repeated because an invalidation came meanwhile
};

/// Adds the statistics to metrics, labelled with the cache's name.
void add_to(metrics& all, const cache_statistics& what, std::string_view name);

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::mr {

/// What a cache has done. Regions and bytes are those of now.
struct cache_statistics {
  std::size_t regions = 0;           ///< kept
  std::size_t bytes = 0;             ///< of these
  std::size_t registered_bytes = 0;  ///< all, with those that are only leased, and those on their way out
  std::uint64_t hits = 0;            ///< leases of what was registered already
  std::uint64_t misses = 0;          ///< registrations that were begun
  std::uint64_t shared = 0;          ///< leases that waited for a registration that another one had begun
  std::uint64_t evictions = 0;       ///< of regions that gave way
  std::uint64_t invalidations = 0;   ///< of regions
  std::uint64_t not_kept = 0;        ///< registrations for which there was no room, or that could not be watched
  std::uint64_t begun_anew = 0;      ///< registrations that an invalidation has overtaken
};

/// Adds what a cache has done to metrics, under a name for it.
void add_to(metrics& all, const cache_statistics& what, std::string_view name);

}  // namespace weft::mr

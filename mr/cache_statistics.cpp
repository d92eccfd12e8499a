// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache_statistics.hpp>

#include <string>

namespace weft::mr {

void add_to(metrics& all, const cache_statistics& what, std::string_view name) {
  const std::string labels = metrics::label("cache", name);
  all.gauge("weft_cache_regions", "Regions that the cache keeps registered.", labels, what.regions);
  all.gauge("weft_cache_bytes", "Bytes that the cache keeps registered.", labels, what.bytes);
  all.gauge("weft_cache_registered_bytes", "Bytes of regions that are kept, only leased, or on their way out.", labels,
            what.registered_bytes);
  all.counter("weft_cache_hits_total", "Leases of memory that was registered.", labels, what.hits);
  all.counter("weft_cache_misses_total", "Leases that began a registration.", labels, what.misses);
  all.counter("weft_cache_shared_total", "Leases that waited for the registration of another lease.", labels,
              what.shared);
  all.counter("weft_cache_evictions_total", "Regions that made room for others.", labels, what.evictions);
  all.counter("weft_cache_invalidations_total", "Regions that were invalidated.", labels, what.invalidations);
  all.counter("weft_cache_not_kept_total", "Registrations that the cache did not keep.", labels, what.not_kept);
}

}  // namespace weft::mr

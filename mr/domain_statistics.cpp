// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain_statistics.hpp>

#include <string>

namespace weft::mr {

void add_to(metrics& all, const domain_statistics& what, std::string_view name) {
  const std::string labels = metrics::label("domain", name);
  all.gauge("weft_domain_regions", "Regions that are registered now.", labels, what.regions);
  all.counter("weft_domain_registrations_total", "Registrations that succeeded.", labels, what.registrations);
  all.counter("weft_domain_registered_bytes_total", "Bytes that were registered.", labels, what.bytes);
  all.counter("weft_domain_failures_total", "Registrations that failed.", labels, what.failures);
}

}  // namespace weft::mr

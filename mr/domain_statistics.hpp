// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <cstdint>
#include <string_view>

namespace weft::mr {

/// The registrations of a domain, including the arenas of pools and the regions of caches.
struct domain_statistics {
  std::uint64_t regions = 0;        ///< registered now
  std::uint64_t registrations = 0;  ///< made so far
  std::uint64_t bytes = 0;          ///< of all registrations made so far; everything() counts as 0
  std::uint64_t failures = 0;       ///< registrations that failed after their options had been checked
};

/// Adds the statistics to metrics, labelled with the domain's name.
void add_to(metrics& all, const domain_statistics& what, std::string_view name);

}  // namespace weft::mr

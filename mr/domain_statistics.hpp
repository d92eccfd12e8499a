// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <cstdint>
#include <string_view>

namespace weft::mr {

/// What a domain has registered: the arenas of pools and what caches keep among it.
struct domain_statistics {
  std::uint64_t regions = 0;        ///< that there are now
  std::uint64_t registrations = 0;  ///< that have been made
  std::uint64_t bytes = 0;          ///< of these
  std::uint64_t failures = 0;       ///< registrations that the transport has refused
};

/// Adds what a domain has done to metrics, under a name for it.
void add_to(metrics& all, const domain_statistics& what, std::string_view name);

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::mr::detail {

class write_counter_core;

/// What a region's windows ask before they let a peer in, and tell of its writes. Part of the region, which each of its
/// windows keeps registered.
struct peer_gate {
  std::atomic<bool> open{true};           ///< false: registered with `disabled`, and not enabled yet; it never closes
  write_counter_core* counter = nullptr;  ///< null: nobody counts; constant once the gate is open
  std::uint32_t told = 0;                 ///< told_counter::number(); constant likewise
};

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace weft::mr::detail {

class write_counter_core;

/// What a region's windows ask before they let a peer in, and tell of its writes. Part of the region, which each of its
/// windows keeps registered.
struct peer_gate {
  std::atomic<bool> open{true};           ///< false: registered with `disabled`, and not enabled yet; it never closes
  write_counter_core* counter = nullptr;  ///< null: nobody counts; constant once the gate is open
};

}  // namespace weft::mr::detail

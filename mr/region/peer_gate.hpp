// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::mr::detail {

class write_counter_core;

/// A region's gate, which its windows check before they give a peer access, and its counter, with which they count the
/// peer's writes. Part of the region, which each of its windows keeps registered.
struct peer_gate {
  std::atomic<bool> open{true};  ///< false: registered with `disabled`, and not enabled yet; once open, it stays open
  write_counter_core* counter = nullptr;  ///< null: nobody counts; constant once the gate is open
  std::uint32_t told = 0;                 ///< told_counter::number(); 0: nobody counts; constant once the gate is open
};

}  // namespace weft::mr::detail

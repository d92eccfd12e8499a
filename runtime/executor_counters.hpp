// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft {

/// The work that an executor has done since it was made. An idle executor neither turns nor sleeps again.
struct executor_counters {
  std::uint64_t turns = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t resumed = 0;
  std::uint64_t tasks = 0;   ///< started side by side: in scopes, by run() and in the background
  std::uint64_t mail = 0;    ///< work that came from other threads
  std::uint64_t stalls = 0;  ///< turns longer than executor_options::stall_limit
};

}  // namespace weft

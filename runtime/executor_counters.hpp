// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/live_number.hpp>

#include <cstdint>

namespace weft {

/// A snapshot of the work that an executor has done since it was made. While an executor without work sleeps, `turns`
/// and `sleeps` grow only for timers, twice a second for pollers that may lose events, and once to free memory.
struct executor_counters {
  std::uint64_t turns = 0;    ///< rounds of its loop
  std::uint64_t sleeps = 0;   ///< waits in the kernel, or in the loop of another library that drives it
  std::uint64_t resumed = 0;  ///< resumptions of coroutines
  std::uint64_t tasks = 0;    ///< tasks started by run(), in scopes and in the background
  std::uint64_t mail = 0;     ///< pieces of work that it has taken from its mailbox, mostly from other threads
  std::uint64_t stalls = 0;   ///< turns longer than executor_options::stall_limit
};

namespace detail {

/// The counters of an executor: changed on its thread, read from any.
struct live_executor_counters {
  live_number turns;
  live_number sleeps;
  live_number resumed;
  live_number tasks;
  live_number mail;
  live_number stalls;

  [[nodiscard]] executor_counters snapshot() const noexcept {
    return {turns.get(), sleeps.get(), resumed.get(), tasks.get(), mail.get(), stalls.get()};
  }
};

}  // namespace detail

}  // namespace weft

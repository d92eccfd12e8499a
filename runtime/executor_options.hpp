// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/open_driver.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace weft {

class worker_pool;

/// How an executor waits for completions.
enum class poll_policy : std::uint8_t {
  adaptive,  ///< spin about twice as long as recent completions took to come, then sleep
  spin,      ///< never sleep: the lowest latency, a whole core
  sleep,     ///< sleep at once: the fewest cycles
};

/// Options of an executor. The seams are there for tests; by default they are the real machine.
struct executor_options {
  poll_policy policy = poll_policy::adaptive;         ///< how it waits for completions
  driver_choice driver = driver_choice::automatic;    ///< io_uring or epoll
  duration max_spin = std::chrono::microseconds(50);  ///< the longest that `adaptive` spins
  worker_pool* workers = nullptr;                     ///< for offload(); null: worker_pool::shared()

  /// Reports turns that take longer, with the name of the task that ran longest (report_kind::stall); zero: reports
  /// none. Costs two readings of the clock for each task that is resumed.
  duration stall_limit = duration::zero();
  /// A signal, such as SIGUSR1; 0: none. When it comes, each running executor that names it reports its dump()
  /// (report_kind::dump). Make such an executor before threads without one start, because these would take the signal.
  int dump_on_signal = 0;

  /// Seam: null is the steady clock. On any other the executor never spins, because time may not pass by itself.
  weft::clock* clock = nullptr;
  weft::system_calls* system_calls = nullptr;       ///< seam: null is the kernel
  event_driver* simulated_driver = nullptr;         ///< seam: used instead of a real one, and not owned
  std::optional<std::uint64_t> ready_order_seed{};  ///< seam: resume ready tasks in an order drawn from this seed
};
static_assert(std::is_trivially_destructible_v<executor_options>);

}  // namespace weft

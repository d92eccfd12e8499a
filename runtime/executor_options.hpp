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
  adaptive,  ///< spin for as long as completions lately took to come, then sleep
  spin,      ///< never sleep: the lowest latency, a whole core
  sleep,     ///< sleep at once: the fewest cycles
};

/// What an executor is made of. The seams are there for tests; their defaults are the real machine.
struct executor_options {
  poll_policy policy = poll_policy::adaptive;         ///< how it waits for completions
  driver_choice driver = driver_choice::automatic;    ///< io_uring or epoll
  duration max_spin = std::chrono::microseconds(50);  ///< upper bound of what `adaptive` spins
  worker_pool* workers = nullptr;                     ///< for offload(); null: worker_pool::shared()

  /// Reports turns that take longer, with the task's name (report_kind::stall); zero: never. It costs a reading of the
  /// clock for each task that is resumed.
  duration stall_limit = duration::zero();
  /// A signal such as SIGUSR1 on which every executor of the process that names it reports dump() while it runs
  /// (report_kind::dump); 0: none. Made before threads without an executor start, so that these do not take the signal.
  int dump_on_signal = 0;

  /// Seam: null is the steady clock. On any other the executor never spins, because time may not pass by itself.
  weft::clock* clock = nullptr;
  weft::system_calls* system_calls = nullptr;       ///< seam: null is the kernel
  event_driver* simulated_driver = nullptr;         ///< seam: used instead of a real one, and not owned
  std::optional<std::uint64_t> ready_order_seed{};  ///< seam: resume ready tasks in an order drawn from this seed
};
static_assert(std::is_trivially_destructible_v<executor_options>);

}  // namespace weft

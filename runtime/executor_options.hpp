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
  /// Spin about twice as long as recent completions took, then sleep. Do not spin if they took longer than
  /// executor_options::max_spin, nor for a while after spins in vain.
  adaptive,
  spin,   ///< never sleep: the lowest latency, a whole core
  sleep,  ///< sleep at once: the fewest cycles
};

/// Options of an executor. Those marked as seams let tests replace a part of the machine; by default nothing is
/// replaced.
struct executor_options {
  poll_policy policy = poll_policy::adaptive;         ///< how it waits for completions
  driver_choice driver = driver_choice::automatic;    ///< io_uring or epoll
  duration max_spin = std::chrono::microseconds(50);  ///< the longest that `adaptive` spins
  /// The pool for calls that block; it must outlive the executor. Null: worker_pool::shared(), and for jobs that make
  /// or destroy resources worker_pool::for_resources().
  worker_pool* workers = nullptr;

  /// Reports turns that take longer, with the name of the task that ran longest (report_kind::stall); zero: reports
  /// none. Unless it is zero, the clock is read twice for each turn and twice for each resumption of a task.
  duration stall_limit = duration::zero();
  /// A signal, such as SIGUSR1; 0: none. When it comes, each running executor that names it reports its dump()
  /// (report_kind::dump). The constructor blocks the signal in the calling thread. Make such an executor before other
  /// threads start, because a thread that does not block the signal would take it.
  int dump_on_signal = 0;

  /// Seam: replaces the steady clock. With it the executor never spins, because its time may not pass by itself.
  weft::clock* clock = nullptr;
  weft::system_calls* system_calls = nullptr;       ///< seam: replaces the kernel's
  event_driver* simulated_driver = nullptr;         ///< seam: replaces the real driver; not owned
  std::optional<std::uint64_t> ready_order_seed{};  ///< seam: resume ready tasks in an order drawn from this seed
};
static_assert(std::is_trivially_destructible_v<executor_options>);

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/live_statistics.hpp>

namespace weft::net {

connection_statistics live_statistics::snapshot(time_point time) const noexcept {
  connection_statistics now;
  now.sends = sends.snapshot();
  now.writes = writes.snapshot();
  now.reads = reads.snapshot();
  now.flushes = flushes.snapshot();
  now.atomics = atomics.snapshot();
  now.waits_for_credits = waits_for_credits.get();
  now.messages_received = messages_received.get();
  now.bytes_received = bytes_received.get();
  now.late_accesses = late_accesses.get();
  now.in_flight = in_flight.get();
  now.waiting = waiting.get();
  now.retired = retired.get();
  now.retired_bytes = retired_bytes.get();
  const std::uint64_t since = stalled_since.get();
  if (since != 0) {
    const auto passed = time.time_since_epoch() - duration(static_cast<duration::rep>(since));
    now.stalled = std::max<std::chrono::nanoseconds>(passed, std::chrono::nanoseconds::zero());
  }
  return now;
}

}  // namespace weft::net

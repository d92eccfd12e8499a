// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <cstdint>
#include <string_view>

namespace weft::net {

/// What has become of one connection's operations so far. Plain numbers, written and read on its executor; what was
/// refused before it was posted is not among them.
struct connection_statistics {
  /// Operations of one kind.
  struct operations {
    std::uint64_t posted = 0;
    std::uint64_t bytes = 0;   ///< of the user's, in those
    std::uint64_t failed = 0;  ///< of those: refused by the peer, or ended with the connection

    operations& operator+=(const operations& other) noexcept;
  };
  operations sends;
  operations writes;
  operations reads;
  operations flushes;
  operations atomics;

  /// Sends, and writes with immediate data, that found no room at the peer when they were started: that many times the
  /// peer was slower than we are.
  std::uint64_t waits_for_credits = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;

  connection_statistics& operator+=(const connection_statistics& other) noexcept;
};

/// What a device has done so far.
struct device_statistics {
  std::uint64_t connections_opened = 0;
  std::uint64_t connections_ended = 0;  ///< of those: nothing is left of them, on our side
  connection_statistics of_ended;       ///< what those had done, all together
};

/// Adds the counters of a connection to metrics, under a name for it. Call on its executor.
void add_to(metrics& all, const connection_statistics& what, std::string_view name);

/// Adds the counters of a device, under a name for it. What connections have done is counted when they have ended.
void add_to(metrics& all, const device_statistics& what, std::string_view name);

}  // namespace weft::net

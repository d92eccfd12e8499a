// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/observe/metrics.hpp>

#include <chrono>
#include <cstdint>
#include <string_view>

namespace weft::net {

/// The operations of one connection so far: a copy, which does not go on counting. Operations that were refused before
/// they were posted are not counted.
struct connection_statistics {
  /// Operations of one kind.
  struct operations {
    std::uint64_t posted = 0;  ///< operations that were started
    std::uint64_t bytes = 0;   ///< of the user's, in those
    std::uint64_t failed = 0;  ///< of those: refused by the peer, or ended with the connection

    /// Adds those of another connection.
    operations& operator+=(const operations& other) noexcept;
  };
  operations sends;    ///< send()
  operations writes;   ///< write()
  operations reads;    ///< read()
  operations flushes;  ///< flush()
  operations atomics;  ///< fetch_add() and compare_swap()

  /// Sends, and writes with immediate data, that found no room at the peer when they were started: so often the peer
  /// was slower than this end.
  std::uint64_t waits_for_credits = 0;
  std::uint64_t messages_received = 0;  ///< also those that no recv() has yielded yet
  std::uint64_t bytes_received = 0;     ///< in those messages

  // At the moment:
  std::uint64_t in_flight = 0;      ///< operations that are posted and have not completed
  std::uint64_t waiting = 0;        ///< operations that wait to be posted, for the peer's credits or for send_depth
  std::uint64_t retired = 0;        ///< what exposure::retire() and window::retire() have left to the connection, and
  std::uint64_t retired_bytes = 0;  ///< its peer has not confirmed
  /// How long no operation has completed although some are in flight or waiting; of several connections, the longest. A
  /// peer whose program is frozen, or that does not receive, is seen by this.
  std::chrono::nanoseconds stalled{};

  /// Adds those of another connection.
  connection_statistics& operator+=(const connection_statistics& other) noexcept;
};

/// The connections and set-ups of a device so far, and those of now.
struct device_statistics {
  std::uint64_t connections_opened = 0;  ///< so far
  std::uint64_t connections_ended = 0;   ///< of those: nothing is left of them at this end
  connection_statistics of_ended;        ///< the sum of all connections that have ended
  connection_statistics of_open;         ///< the sum of the others so far, and what they have in flight now

  std::uint64_t set_ups = 0;          ///< now: calls of connect() and accept() that have not returned
  std::uint64_t half_open = 0;        ///< now: peers that a listener has let in and that have not sent their request
  std::uint64_t connects_failed = 0;  ///< calls of connect() that have thrown
  std::uint64_t accepts_failed = 0;   ///< likewise of accept()
  /// Peers of a listener that were dropped before listener::next() could yield them: their request did not come in
  /// time, or was invalid, or there was no room for them.
  std::uint64_t requests_failed = 0;
  /// Failures of listeners themselves: accept(2) found no descriptors or memory, for instance. Peers wait meanwhile.
  std::uint64_t accept_errors = 0;

  /// How many there are now.
  [[nodiscard]] std::uint64_t connections_open() const noexcept { return connections_opened - connections_ended; }
  /// What all connections have done so far.
  [[nodiscard]] connection_statistics of_all() const noexcept {
    connection_statistics sum = of_ended;
    sum += of_open;
    return sum;
  }
};

/// Adds the counters of a connection to metrics, under a name for it.
void add_to(metrics& all, const connection_statistics& what, std::string_view name);

/// Adds the counters of a device, under a name for it, with what its connections have done so far.
void add_to(metrics& all, const device_statistics& what, std::string_view name);

}  // namespace weft::net

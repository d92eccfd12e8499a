// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/metrics.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net {

/// A snapshot of one connection's counters. Operations that were refused before they were posted are not counted.
struct connection_statistics {
  /// Operations of one kind.
  struct operations {
    std::uint64_t posted = 0;  ///< operations that were started
    std::uint64_t bytes = 0;   ///< user bytes in these operations
    std::uint64_t failed = 0;  ///< posted operations that failed, for instance because the peer refused them

    /// Adds the counters of another connection.
    operations& operator+=(const operations& other) noexcept;
  };
  operations sends;    ///< send()
  operations writes;   ///< write()
  operations reads;    ///< read()
  operations flushes;  ///< flush()
  operations atomics;  ///< fetch_add() and compare_swap()

  /// Sends, and writes with immediate data, that had to wait for the peer's credits when they were started: how often
  /// the peer was slower than this end.
  std::uint64_t waits_for_credits = 0;
  std::uint64_t messages_received = 0;  ///< including those that no recv() has yielded yet
  std::uint64_t bytes_received = 0;     ///< in those messages
  /// Late accesses of the peer to memory that was taken back, over rails, where only the access is lost.
  std::uint64_t late_accesses = 0;

  // At the moment:
  std::uint64_t in_flight = 0;      ///< operations that are posted and have not completed
  std::uint64_t waiting = 0;        ///< operations that wait to be posted, for the peer's credits or for send_depth
  std::uint64_t retired = 0;        ///< exposures given to exposure::retire() that the peer has not confirmed
  std::uint64_t retired_bytes = 0;  ///< bytes of their memory
  /// How long no operation has completed although some are in flight or waiting; of several connections, the longest.
  /// Shows a peer whose program is frozen, or that does not receive.
  std::chrono::nanoseconds stalled{};

  /// Adds the counters of another connection.
  connection_statistics& operator+=(const connection_statistics& other) noexcept;
};

/// The state of a connection's rail (docs/rails.md).
enum class rail_state : std::uint8_t {
  absent,   ///< it has no link: the end that connected keeps trying to get one
  joining,  ///< it has a link, and waits for the peer's first message over it
  up,       ///< it carries traffic
  ending,   ///< its link has ended, but still holds memory
};
/// "absent", "joining", "up" or "ending".
[[nodiscard]] std::string_view name_of(rail_state what) noexcept;

/// The traffic of a rail since its connection was set up, over all links that it has had.
struct rail_traffic {
  /// Traffic in one direction.
  struct direction {
    std::uint64_t requests = 0;  ///< completed requests; each slice of a large transfer counts as one
    std::uint64_t bytes = 0;     ///< user bytes in these requests
  };
  direction to_peer;    ///< sends, writes and atomic operations
  direction from_peer;  ///< received messages, and reads of this end; the peer's reads are not counted here

  std::uint64_t sent_again = 0;  ///< requests and slices that were repeated because this rail ended with them in flight
  std::uint64_t opened = 0;      ///< how often it has come up, the first time included
  std::uint64_t lost = 0;        ///< how often it has ended while its connection went on
  std::uint64_t control_messages_sent = 0;      ///< messages of the protocol between rails, beside the connection's own
  std::uint64_t control_messages_received = 0;  ///< received messages of that protocol

  /// Adds the traffic of another rail.
  rail_traffic& operator+=(const rail_traffic& other) noexcept;
};

/// A snapshot of one rail of a connection.
struct rail_statistics {
  unsigned number = 0;                    ///< its index among the connection's rails, the same at both ends
  std::string fabric{};                   ///< "verbs:mlx5_1"
  std::string peer{};                     ///< the address of the peer's end: "10.1.0.2:7471"
  rail_state state = rail_state::absent;  ///< what it is doing now
  std::chrono::nanoseconds since{};       ///< how long it has been in that state
  /// Why its last link ended, or why it could not get one; empty if neither has happened. Kept after the rail has come
  /// back.
  std::string why{};
  bool carries_messages = false;       ///< messages and small requests of this end go over it
  std::uint64_t bytes_per_second = 0;  ///< its rate when it last carried large requests of this end; 0 if it never has
  rail_traffic so_far{};               ///< its traffic
};

/// The rails of all connections of a device that go over one fabric.
struct fabric_rail_statistics {
  std::string fabric{};                ///< "verbs:mlx5_1"
  std::uint64_t absent = 0;            ///< now: rails of open connections that are absent
  std::uint64_t joining = 0;           ///< now: rails of open connections that are joining
  std::uint64_t up = 0;                ///< now: rails of open connections that are up
  std::uint64_t ending = 0;            ///< now: rails of open connections that are ending
  std::uint64_t bytes_per_second = 0;  ///< the sum of the rates of rails that are up
  rail_traffic so_far{};               ///< including the rails of ended connections
};

/// Counters of a device's connections and set-ups, so far and now.
struct device_statistics {
  std::uint64_t connections_opened = 0;  ///< so far
  std::uint64_t connections_ended = 0;   ///< so far: connections that have ended, and hold nothing at this end any more
  connection_statistics of_ended;        ///< the sum over all connections that have ended
  connection_statistics of_open;         ///< the sum over all open connections, as of now

  std::uint64_t set_ups = 0;          ///< now: calls of connect() and accept() in progress
  std::uint64_t half_open = 0;        ///< now: peers that a listener has let in and that have not sent their request
  std::uint64_t connects_failed = 0;  ///< calls of connect() that have thrown
  std::uint64_t accepts_failed = 0;   ///< calls of accept() that have thrown
  /// Peers of a listener that were dropped before listener::next() could yield them: their request did not come in
  /// time, or was invalid, or there was no room for them.
  std::uint64_t requests_failed = 0;
  /// Failures of listeners themselves: accept(2) found no descriptors or memory, for instance. Peers wait meanwhile, or
  /// are turned away.
  std::uint64_t accept_errors = 0;

  /// An entry for each fabric that may carry rails, in the device's order; empty if no fabrics were joined as rails
  /// ("a+b") and no connection has had a rail (connection_options::resume_within).
  std::vector<fabric_rail_statistics> rails{};

  /// The number of connections that are open now.
  [[nodiscard]] std::uint64_t connections_open() const noexcept { return connections_opened - connections_ended; }
  /// The sum over all connections so far.
  [[nodiscard]] connection_statistics of_all() const noexcept {
    connection_statistics sum = of_ended;
    sum += of_open;
    return sum;
  }
};

/// Adds the counters of a connection to metrics, under a name for it.
void add_to(metrics& all, const connection_statistics& what, std::string_view name);

/// Adds the rails of a connection, as connection::rails() yields them, under a name for it.
void add_to(metrics& all, std::span<const rail_statistics> what, std::string_view name);

/// Adds the counters of a device, under a name for it: set-ups, the sum over its connections, and its rails by fabric.
void add_to(metrics& all, const device_statistics& what, std::string_view name);

}  // namespace weft::net

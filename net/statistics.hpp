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
  /// How often the peer has used memory that was taken back, and lost that access alone: over rails.
  std::uint64_t late_accesses = 0;

  // At the moment:
  std::uint64_t in_flight = 0;      ///< operations that are posted and have not completed
  std::uint64_t waiting = 0;        ///< operations that wait to be posted, for the peer's credits or for send_depth
  std::uint64_t retired = 0;        ///< what exposure::retire() has left to the connection and its peer has not
  std::uint64_t retired_bytes = 0;  ///< confirmed
  /// How long no operation has completed although some are in flight or waiting; of several connections, the longest. A
  /// peer whose program is frozen, or that does not receive, is seen by this.
  std::chrono::nanoseconds stalled{};

  /// Adds those of another connection.
  connection_statistics& operator+=(const connection_statistics& other) noexcept;
};

/// What a rail of a connection is doing (docs/rails.md).
enum class rail_state : std::uint8_t {
  absent,   ///< it has no link: the end that has connected asks for one again and again
  joining,  ///< it has a link, and waits for the peer's first word over it
  up,       ///< it carries its part
  ending,   ///< its link has ended, and has not let go of all memory yet
};
/// "absent", "joining", "up" or "ending".
[[nodiscard]] std::string_view name_of(rail_state what) noexcept;

/// What a rail has carried since its connection was set up, through all the links that it has had.
struct rail_traffic {
  /// What went one way.
  struct direction {
    std::uint64_t requests = 0;  ///< that have completed; of a large transfer each slice is one
    std::uint64_t bytes = 0;     ///< of the user's, in those
  };
  direction to_peer;    ///< sends, writes and atomic operations
  direction from_peer;  ///< messages that came, and reads of this end; nobody here learns what the peer reads

  std::uint64_t sent_again = 0;  ///< requests and slices that had to go another time, because this rail ended with them
  std::uint64_t opened = 0;      ///< how often it has come up: the first time is one
  std::uint64_t lost = 0;        ///< how often it has ended while its connection went on
  std::uint64_t control_messages_sent = 0;      ///< what both ends say about rails, beside the connection's messages
  std::uint64_t control_messages_received = 0;  ///< likewise

  /// Adds those of another rail.
  rail_traffic& operator+=(const rail_traffic& other) noexcept;
};

/// One rail of a connection: a copy.
struct rail_statistics {
  unsigned number = 0;                    ///< its place among those of the connection, the same at both ends
  std::string fabric{};                   ///< "verbs:mlx5_1"
  std::string peer{};                     ///< the address of the peer's end: "10.1.0.2:7471"
  rail_state state = rail_state::absent;  ///< what it is doing
  std::chrono::nanoseconds since{};       ///< for how long it has been doing that
  /// Why its last link has ended, or why it could not get one; empty if neither has happened. It stays when the rail
  /// has come back.
  std::string why{};
  bool carries_messages = false;       ///< messages and small requests of this end go over it
  std::uint64_t bytes_per_second = 0;  ///< the rate at which it went when this end last gave it much to do; 0: never
  rail_traffic so_far{};               ///< what it has carried
};

/// The rails of all connections of a device that go over one fabric.
struct fabric_rail_statistics {
  std::string fabric{};                ///< "verbs:mlx5_1"
  std::uint64_t absent = 0;            ///< now: rails in that state, of open connections
  std::uint64_t joining = 0;           ///< likewise
  std::uint64_t up = 0;                ///< likewise
  std::uint64_t ending = 0;            ///< likewise
  std::uint64_t bytes_per_second = 0;  ///< the sum over those that are up
  rail_traffic so_far{};               ///< with what the rails of ended connections have carried
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

  /// One for each fabric that may carry rails, in their order; empty if the device has none ("a+b"), and no connection
  /// has waited for links (connection_options::resume_within).
  std::vector<fabric_rail_statistics> rails{};

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

/// Adds the rails of a connection, as connection::rails() yields them, under a name for it.
void add_to(metrics& all, std::span<const rail_statistics> what, std::string_view name);

/// Adds the counters of a device, under a name for it, with what its connections have done so far, and the rails that
/// it has, by fabric.
void add_to(metrics& all, const device_statistics& what, std::string_view name);

}  // namespace weft::net

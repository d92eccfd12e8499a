// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/attached_link.hpp>
#include <weft/net/connection/lending.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::net {

class device_state;

/// State shared by all parts of a connection, such as its link, its credits, and whether it has ended. On its executor.
struct connection_state {
  /// Called on the executor that will own the connection.
  connection_state(std::shared_ptr<device_state> device, new_link established, const connection_options& options);
  connection_state(const connection_state&) = delete;
  connection_state& operator=(const connection_state&) = delete;
  ~connection_state() = default;

  [[nodiscard]] net::link& link() noexcept { return *carrier.link; }
  [[nodiscard]] const capabilities& properties() const noexcept { return carrier.properties; }

  [[nodiscard]] bool has_ended() const noexcept { return failure || closing || peer_closed; }
  /// True if no further message will arrive for the program.
  [[nodiscard]] bool input_has_ended() const noexcept { return has_ended() || input_over; }
  /// Returns why the connection has ended: the cause alone, to which the caller adds the operation and the peer.
  [[nodiscard]] error why_ended() const noexcept;
  /// A number that no other connection of the process has now, not even an ended one with keys that are still open.
  [[nodiscard]] std::uint64_t number() const noexcept { return reinterpret_cast<std::uintptr_t>(keys.get()); }
  /// True if this end sends nothing more than what was posted.
  [[nodiscard]] bool is_silent() const noexcept { return failure || shut_down || close_sent; }
  /// "`what` 10.0.0.7:7471 over iwarp"
  [[nodiscard]] std::string context(const char* what) const;

  // Each of these ends the connection, unless it has failed already. The link may call its events from inside them.
  void give_up(const error& why) noexcept;
  void violation(const char* what, net::link::violation kind = net::link::violation::other) noexcept;
  void too_large() noexcept;
  void abort(std::string_view why) noexcept;

  executor_core& home;
  executor_core::held_open open{home};  // keeps the executor serving, so that it answers the peer
  std::shared_ptr<device_state> device;
  connection_options options;  // without pointers to the user's memory
  attached_link carrier;
  live_statistics statistics;
  std::shared_ptr<link_keys> keys;  // to this end's memory

  // Numbers of data messages since the set-up, modulo 2^32.
  std::uint32_t sent = 0;
  std::uint32_t sendable = 0;  // messages that the peer lets us send
  std::uint32_t received = 0;
  std::uint32_t receivable = 0;  // messages that we let the peer send
  std::uint32_t offered = 0;     // `receivable` as it was last sent to the peer

  // The end of the connection.
  std::optional<error> failure;  // why the connection is over; set once
  bool closing = false;          // this end has begun an orderly close
  bool input_over = false;       // a peer that is not weft sends no more, but takes what we send
  bool peer_closed = false;      // the peer has closed, and takes no more either
  bool shut_down = false;        // link::shut_down() was called
  bool close_sent = false;
  bool aborted = false;  // abort() was called

  // The number of the connection's coroutines in progress; the connection is not destroyed before they end.
  std::size_t calls = 0;
  event unused;  // set when `calls` falls to 0
};

/// Keeps the connection from being destroyed, for as long as this object lives.
class inside_call {
 public:
  explicit inside_call(connection_state& state) noexcept : state_(state) {
    ++state_.calls;
    state_.unused.reset();
  }
  inside_call(const inside_call&) = delete;
  inside_call& operator=(const inside_call&) = delete;
  ~inside_call() {
    if (--state_.calls == 0) state_.unused.set();
  }

 private:
  connection_state& state_;
};

/// Makes the checks of begin_task(), and throws as it does, without making the context.
void check_task(const connection_state& state, const link_keys& keys, const char* what);

/// Returns the context for errors of a task of the connection: `what`, and the peer. Throws errc::closed if `keys` says
/// that the connection, and `state` with it, was destroyed before the task was awaited; errc::wrong_thread on any
/// executor but the connection's.
[[nodiscard]] std::string begin_task(const connection_state& state, const link_keys& keys, const char* what);

}  // namespace weft::net

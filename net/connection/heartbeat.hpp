// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/runtime/system/timer.hpp>

namespace weft::net {

/// Looks after the peer of a connection now and then, and answers when the peer does so.
class heartbeat final : private weft::detail::timer {
 public:
  heartbeat(connection_state& state, sending& out) noexcept : state_(state), out_(out) {}
  heartbeat(const heartbeat&) = delete;
  heartbeat& operator=(const heartbeat&) = delete;

  /// Begins to ask, if the options say so and the peer answers.
  void start() noexcept;
  void stop() noexcept;

  /// A message has come.
  void heard() noexcept { heard_ = true; }
  /// An operation of ours has completed.
  void moved() noexcept { moved_ = true; }
  /// The peer asks. Any message is an answer; credits are the one that can always go.
  void answer() noexcept;
  /// The slot of the connection's own messages is free: true if what was owed has taken it.
  [[nodiscard]] bool take_slot() noexcept;

 private:
  void expired() noexcept override { beat(); }
  void arm() noexcept;
  void beat() noexcept;
  void ask() noexcept;

  connection_state& state_;
  sending& out_;
  unsigned silent_beats_ = 0;   // in a row, without a sign of life
  bool heard_ = true;           // since the last beat
  bool moved_ = false;          // since the last beat
  bool asking_ = false;         // a heartbeat is with the link, or waits for the slot
  bool question_owed_ = false;  // it waits for the slot
  bool answer_owed_ = false;    // likewise our answer to the peer's
};

}  // namespace weft::net

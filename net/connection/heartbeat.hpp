// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/runtime/system/timer.hpp>

namespace weft::net {

/// Checks from time to time that the peer's program runs, and answers the peer's checks.
class heartbeat final : private weft::detail::timer {
 public:
  heartbeat(connection_state& state, sending& out) noexcept : state_(state), out_(out) {}
  heartbeat(const heartbeat&) = delete;
  heartbeat& operator=(const heartbeat&) = delete;

  /// Starts the heartbeat, if the options ask for it and the peer answers.
  void start() noexcept;
  void stop() noexcept;

  /// Notes that a message of the peer has come.
  void heard() noexcept { heard_ = true; }
  /// Notes that an operation of this end has completed.
  void moved() noexcept { moved_ = true; }
  /// Answers the peer's heartbeat by a credits message, which needs no credit itself: now, or when the slot is free.
  void answer() noexcept;
  /// Sends a heartbeat or an answer that is owed, in the slot of the connection's own messages, which has become free.
  /// False if none is owed.
  [[nodiscard]] bool take_slot() noexcept;

 private:
  void expired() noexcept override { beat(); }
  void arm() noexcept;
  void beat() noexcept;
  void ask() noexcept;

  connection_state& state_;
  sending& out_;
  unsigned silent_beats_ = 0;   // beats in a row without a sign of life
  bool heard_ = true;           // a message of the peer has come since the last beat
  bool moved_ = false;          // an operation has completed since the last beat
  bool asking_ = false;         // a heartbeat is with the link, or waits for the slot
  bool question_owed_ = false;  // the heartbeat waits for the slot
  bool answer_owed_ = false;    // the answer to the peer's heartbeat waits for the slot
};

}  // namespace weft::net

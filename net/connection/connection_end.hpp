// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/lending.hpp>
#include <weft/net/connection/receiving.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <memory>

namespace weft::net {

/// How a connection ends: by an orderly close from either side, or otherwise.
class connection_end {
 public:
  connection_end(connection_state& state, sending& out, receiving& in) noexcept : state_(state), out_(out), in_(in) {}
  connection_end(const connection_end&) = delete;
  connection_end& operator=(const connection_end&) = delete;

  /// Closes once everything posted has been sent.
  void begin() noexcept;
  /// Takes the next step of an orderly close, if it is due: wait for posted operations, send the close message, shut
  /// the link down. The peer's close is answered too, without a close message.
  void advance() noexcept {
    if (state_.closing || state_.peer_closed) [[unlikely]]
      take_step();
  }
  /// The peer has sent its close message.
  void peer_has_closed() noexcept;
  /// The peer, not weft, sends no more: see link_events::input_over().
  void input_over() noexcept;
  /// The link has ended, see link_events::ended().
  void link_ended(bool orderly, const error& why) noexcept;
  /// The link has released everything, and there is no other.
  void link_closed() noexcept { closed_.set(); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.is_set(); }

  /// What connection::close() awaits; `state` belongs to `self`. Tasks begin when they are awaited, and both may be
  /// gone by then: ask `keys`.
  static task<> close(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys);
  /// What connection::ended() awaits, likewise.
  static task<error> wait_until_over(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys);
  /// Returns once the link has released everything. Aborts the link after close_timeout. Throws std::bad_alloc if there
  /// is no memory for the coroutine.
  task<> wait_until_closed();
  /// Replaces wait_until_closed() if there is no memory for its coroutine: ends the connection at once.
  event::wait_operation abort_without_memory() noexcept;

 private:
  void take_step() noexcept;

  connection_state& state_;
  sending& out_;
  receiving& in_;
  event over_;  // set once connection_state::has_ended()
  event closed_;
};

}  // namespace weft::net

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

/// Ends a connection: by an orderly close from either side, or otherwise.
class connection_end {
 public:
  connection_end(connection_state& state, sending& out, receiving& in) noexcept : state_(state), out_(out), in_(in) {}
  connection_end(const connection_end&) = delete;
  connection_end& operator=(const connection_end&) = delete;

  /// Begins an orderly close, which first lets all operations complete that wait or are in flight. Receives end at
  /// once. Does nothing but drop unreceived messages if the connection has failed or is closing already.
  void begin() noexcept;
  /// Takes the next step of an orderly close, if no operation waits or is in flight: sends the close message, and after
  /// that shuts the link down. If the peer has closed, or is not weft, shuts the link down without a close message.
  void advance() noexcept {
    if (state_.closing || state_.peer_closed) [[unlikely]]
      take_step();
  }
  /// Takes the peer's close message: ends waiting operations and receives, and answers the close.
  void peer_has_closed() noexcept;
  /// Ends waiting receives, because a peer that is not weft has finished sending: see link_events::input_over().
  void input_over() noexcept;
  /// Ends waiting operations and receives, because the link has ended: see link_events::ended().
  void link_ended(bool orderly, const error& why) noexcept;
  /// Notes that the link has released everything.
  void link_closed() noexcept { closed_.set(); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.is_set(); }

  /// The task of connection::close(); `state` belongs to `self`. Both may be gone when the task begins, so it checks
  /// `keys` first.
  static task<> close(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys);
  /// The task of connection::ended(), which checks `keys` first as well.
  static task<error> wait_until_over(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys);
  /// Returns once the link has released everything. Aborts the link after close_timeout. Throws errc::canceled if it is
  /// stopped before the timeout, and std::bad_alloc if there is no memory for the coroutine.
  task<> wait_until_closed();
  /// Aborts the connection, and waits until the link has released everything. Replaces wait_until_closed() if there is
  /// no memory for the coroutine of that function.
  event::wait_operation abort_without_memory() noexcept;

 private:
  void take_step() noexcept;

  connection_state& state_;
  sending& out_;
  receiving& in_;
  event over_;  // set when this end begins to close, the peer has closed, or the link has ended
  event closed_;
};

}  // namespace weft::net

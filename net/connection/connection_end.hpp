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

  /// Begins an orderly close, which first lets all operations complete that wait or are in flight.
  void begin() noexcept;
  /// Takes the next step of an orderly close, if it is due: wait for posted operations, send the close message, shut
  /// the link down. The peer's close is answered too, without a close message.
  void advance() noexcept {
    if (state_.closing || state_.peer_closed) [[unlikely]]
      take_step();
  }
  /// Called when the peer has sent its close message.
  void peer_has_closed() noexcept;
  /// Called when a peer that is not weft has finished sending: see link_events::input_over().
  void input_over() noexcept;
  /// Called when the link has ended: see link_events::ended().
  void link_ended(bool orderly, const error& why) noexcept;
  /// Called when the link has released everything.
  void link_closed() noexcept { closed_.set(); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.is_set(); }

  /// The task of connection::close(); `state` belongs to `self`. It begins when it is awaited, and both may be gone by
  /// then, so it checks `keys` first.
  static task<> close(connection_end& self, connection_state& state, std::shared_ptr<link_keys> keys);
  /// The task of connection::ended(), which checks `keys` first as well.
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

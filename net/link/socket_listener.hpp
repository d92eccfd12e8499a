// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/timer.hpp>

#include <sys/socket.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net {

/// The origin of a peer over IP: its IPv4 address, or the first half of its IPv6 address, because a host chooses the
/// second half itself.
[[nodiscard]] peer_origin network_of(const socket_address& from) noexcept;

class half_open_peer;

/// The common part of listeners on sockets, which accept peers, receive their requests and hand them out.
///
/// Requests are received in the background, a bounded number at a time. At that bound, a new peer takes the place of a
/// peer that has connected and said nothing for 25 ms, so silent peers keep nobody out for long. Requests that nobody
/// takes do not keep out peers that the filter expects. If the process has no descriptors left, peers are turned away
/// by means of a spare descriptor.
///
/// A listener_handle owns it; the set-ups in the background may keep it for a moment after the handle is gone.
class socket_listener : private io_operation,
                        private weft::detail::timer,
                        public std::enable_shared_from_this<socket_listener> {
 public:
  socket_listener(const socket_listener&) = delete;
  socket_listener& operator=(const socket_listener&) = delete;

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  /// link_listener::next() of `self`, which the coroutine keeps alive.
  static task<std::unique_ptr<link_request>> next(std::shared_ptr<socket_listener> self);
  /// link_listener::close(), from any thread.
  void close() noexcept;

 protected:
  /// Takes over `socket`, which listens already, for the running executor. `name` is link_listener::address(). Throws
  /// weft::error if no spare descriptor can be reserved.
  socket_listener(descriptor socket, std::string name, const listen_options& options);
  virtual ~socket_listener() = default;

  [[nodiscard]] executor_core& home() const noexcept { return executor_; }

 private:
  /// The origin of the peer that was accepted on the socket, from address `from`: its network. Listeners whose peers
  /// have no network address override it.
  [[nodiscard]] virtual peer_origin origin_of(const descriptor&, const socket_address& from) const noexcept {
    return network_of(from);
  }
  /// Waits for a peer's request, and yields it, never null. Throws if the peer sends no valid request; an exception
  /// ends this peer's set-up alone. Runs with a stop token of its own, and the listener lives until the task has ended.
  /// The event driver must have forgotten the socket by then, because the request may be accepted on another executor.
  virtual task<std::unique_ptr<link_request>> receive_request(std::unique_ptr<descriptor> socket,
                                                              const socket_address& from, time_point deadline) = 0;
  /// Waits for a peer's request and rejects it, because no descriptors are left; throws if that is impossible.
  virtual task<> turn_away(descriptor& socket, time_point deadline) = 0;
  /// Called once, on the executor's thread, when the listener closes, and while its socket still listens.
  virtual void closing() noexcept {}

  void accept_more() noexcept;
  [[nodiscard]] bool is_full() const noexcept;
  void make_room() noexcept;
  void expired() noexcept override { accept_more(); }
  void accepted(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept;
  void not_accepted(int number) noexcept;
  // Coroutines may begin later than they are called: `self` keeps the listener alive from the call until the end.
  task<> wait_for_accept(std::shared_ptr<socket_listener> self);
  void complete(int result) noexcept override;
  void begin_set_up(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept;
  void begin_refusal(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept;
  task<> refuse(std::shared_ptr<socket_listener> self, descriptor accepted);
  task<> reject_request(descriptor& accepted);
  task<> set_up(std::shared_ptr<socket_listener> self, std::unique_ptr<half_open_peer> place, descriptor accepted,
                socket_address from);
  task<> await_request(half_open_peer& place, descriptor& accepted, const socket_address& from);

  executor_core& executor_;
  descriptor socket_;
  std::string name_;
  listen_options options_;
  // If no descriptors are left, the listener first waits for a peer, and gives up the spare descriptor only while
  // accept(2) accepts that peer. The peer is then turned away, unless another descriptor has become free.
  spare_descriptor spare_;
  bool on_spare_ = false;  // the spare descriptor was given up for accept(2), which is in progress
  bool refusing_ = false;  // a peer that took the place of the spare descriptor is being turned away
  sockaddr_storage peer_{};
  std::shared_ptr<socket_listener> accepting_;  // keeps the listener alive while its operation is in progress
  std::vector<half_open_peer*> half_open_;      // oldest first
  bool waits_for_room_ = false;                 // all places are taken; one of them is cleared once a peer waits
  std::deque<std::unique_ptr<link_request>> requests_;
  event changed_;
  event accept_ended_;  // set once accept(2) has ended after close()
  int failure_ = 0;     // what next() has to throw, or pause for: errno of accept(2), or ENOMEM
  bool closed_ = false;
  stop_source stop_;
};

}  // namespace weft::net

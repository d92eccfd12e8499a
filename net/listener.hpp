// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/task.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace weft::net {

class connection_core;
class connection_place;
class connection_places;
class device_state;
class link_listener;
class link_request;

/// A peer that wants to connect: accept it or reject it. Move-only.
///
/// It belongs to no executor: hand it over, for instance with executor::post(), and accept it there. Destroying it
/// unanswered, on any thread, rejects the peer without waiting, with empty private data; a peer that is not weft and
/// has sent more than its request may see the connection end instead.
class connection_request {
 public:
  connection_request(connection_request&&) noexcept;
  connection_request& operator=(connection_request&&) noexcept;
  ~connection_request();

  /// "10.0.0.9:40312"; empty once the request was answered.
  [[nodiscard]] std::string_view peer() const noexcept;
  /// The private data that the peer's user sent. Hostile until checked. Empty once the request was answered.
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept;

  /// Establishes the connection, on the executor that awaits this and owns the connection from then on. Throws a
  /// weft::error that names the failed step. Call it once. The request may be destroyed meanwhile.
  ///
  /// Throws errc::no_memory at once if the pool can never hold the receives, and after at most a quarter of
  /// set_up_timeout if too many peers of this listener already wait for receives (listener_options::max_connections);
  /// errc::timed_out if the pool has none by then. In these cases the peer's connect() fails with ENOBUFS.
  /// errc::timed_out, too, if the peer has not gone on for 100 ms while another one needs its place or, because the
  /// pool is full, its receives.
  task<connection> accept(connection_options options = {});
  /// Rejects the peer: its connect() fails with errc::peer_rejected and `private_data`, at most max_private_data bytes,
  /// or max_interop_private_data if the peer is not weft or does not say so (profile::interop). More is
  /// errc::invalid_argument, and the peer is then rejected without private data.
  task<> reject(std::span<const std::byte> private_data = {});

 private:
  friend class listener;
  connection_request(std::shared_ptr<device_state> device, std::unique_ptr<link_request> request,
                     std::unique_ptr<connection_place> place) noexcept;

  static task<connection> make_connection(task<std::unique_ptr<connection_core>> core);

  std::shared_ptr<device_state> device_;
  std::unique_ptr<connection_place> place_;
  weft::detail::sole_handle<std::unique_ptr<link_request>, "a connection request"> request_;
};

/// Takes the peers that connect to an address. Move-only. It belongs to the executor on which it was made, and stops
/// listening when it is destroyed. A listener that was moved from has no address, and its next() and accept() throw
/// errc::closed.
///
///     while (auto peer = co_await listener.accept()) peers.spawn(serve(std::move(*peer)));
///
/// Except with verbs, each peer takes a descriptor. If the process has none left, the listener turns peers away with
/// one that it keeps in reserve: their connect() fails with EMFILE, "the peer has no descriptors left".
class listener {
 public:
  listener(listener&&) noexcept;
  listener& operator=(listener&&) noexcept;
  ~listener();

  /// "0.0.0.0:7471", with the port that the system chose if port 0 was asked for.
  [[nodiscard]] std::string_view address() const noexcept;

  /// Waits for the next peer that asks for a connection, and yields its request; the result is empty after close().
  /// Drops a peer whose request is invalid. While a task waits here, peers beyond listener_options::max_connections are
  /// rejected, with the reason that there is no place for them. Throws errc::wrong_thread on any other executor than
  /// the listener's, and the error of a fabric that fails to accept peers; next() may then be called again.
  task<std::optional<connection_request>> next();

  /// Waits for the next peer and sets its connection up, for programs that accept every request. The result is empty
  /// after close().
  ///
  /// While somebody waits here, up to listener_options::max_half_open peers are set up side by side, so a slow peer
  /// does not hold up the others, and the first that is ready is yielded first. At that limit the next peer takes the
  /// place of one that has not gone on for 100 ms. If the set-up of a peer fails, it is counted
  /// (device_statistics::accepts_failed) and reported (report_kind::failure), and the others go on. Several tasks may
  /// wait at once, in next() too: each peer goes to one of them.
  ///
  /// Stopping a call loses no peer: set-ups that have begun go on, and their connections go to the next accept().
  /// close() ends these set-ups, and the connections that nobody has taken. A set-up uses the options of the call that
  /// began the wait for its peer, even if that call was stopped meanwhile or another call gets the connection. Throws
  /// errc::invalid_argument and errc::no_memory at once for options that would make every set-up fail, and otherwise
  /// what next() throws.
  task<std::optional<connection>> accept(connection_options options = {});

  /// Stops listening: next() and accept() yield nothing more, peers that connect are refused, and those that wait are
  /// rejected. May be called, like the destructor, on any thread; on another thread than the executor's it takes effect
  /// a little later, on the executor.
  void close() noexcept;

 private:
  friend class device;
  struct set_ups;
  class set_up_choice;
  listener(std::shared_ptr<device_state> device, std::shared_ptr<link_listener> source,
           const listener_options& options);

  static task<std::optional<connection_request>> next_request(std::shared_ptr<device_state> device,
                                                              std::shared_ptr<link_listener> source,
                                                              std::shared_ptr<connection_places> places);
  static task<std::optional<connection>> next_connection(std::shared_ptr<set_ups> all, connection_options options);
  static task<> take_peer(std::shared_ptr<set_ups> all, std::shared_ptr<const set_up_choice> how);
  static task<> wait_for_room(set_ups& all);
  static task<> set_up_peer(set_ups& all, const set_up_choice& how, connection_request request);

  std::shared_ptr<device_state> device_;
  std::shared_ptr<connection_places> places_;
  std::shared_ptr<set_ups> set_ups_;  // set-ups of accept(), which may outlive the listener for a moment
  weft::detail::sole_handle<std::shared_ptr<link_listener>, "a listener"> source_;  // shared with calls of next()
};

}  // namespace weft::net

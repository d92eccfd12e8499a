// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// TCP sockets for iWARP and for plain streams.
namespace weft::net {

/// Opens a TCP socket. Throws weft::error.
[[nodiscard]] descriptor open_socket(const socket_address& address, system_calls& calls);
/// Sets TCP_NODELAY, and lets the kernel end the connection when the peer is silent for `dead_peer_after`, whether or
/// not data is in flight to it: see tcp(7), TCP_USER_TIMEOUT and TCP_KEEPIDLE. For an idle peer the kernel counts in
/// whole seconds. If the time is zero, an idle peer may be silent for ever, and only data that is never acknowledged
/// ends the connection, after the kernel's own time (tcp_retries2). A socket on which data is sent needs a
/// tcp_window_watch, too. Throws weft::error.
void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after);

/// Sets the traffic class of the packets: ip(7), IP_TOS, and ipv6(7), IPV6_TCLASS. Does nothing if `traffic_class` is
/// empty. Throws weft::error.
void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class);
/// Binds the socket to the first of `sources` that is of `target`'s address family. Does nothing if there are no
/// sources. Throws errc::invalid_address if all are of other families, or the error of bind(2) or setsockopt(2).
void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources);

// The calls of a set-up. A call that fails throws a weft::error whose text begins with `step`: errc::timed_out at the
// deadline, or the call's errno. After a stop it throws errc::canceled, which does not name the step. If the waiting
// task is destroyed during a call, the call takes the socket over, is cancelled, and then closes the socket. That
// happens in the background, but blocks if memory is short or the executor does not run.

/// Connects; the step is "TCP connection". Throws weft::error.
task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline);
/// Receives some bytes and yields their number, which is 0 at the end of the stream. Throws weft::error.
task<std::size_t> receive_some(descriptor& socket, std::span<std::byte> where, const char* step, time_point deadline);
/// Sends some of the bytes and yields their number. Throws weft::error.
task<std::size_t> send_some(descriptor& socket, std::span<const std::byte> what, const char* step, time_point deadline);
/// Waits until the peer has sent something, or has gone. Throws weft::error.
task<> wait_for_input(descriptor& socket, const char* step, time_point deadline);

/// Opens a listening socket. Throws weft::error.
[[nodiscard]] descriptor listen_at(const socket_address& address, system_calls& calls,
                                   std::optional<std::uint8_t> traffic_class);
/// The address to which the socket is bound. Throws weft::error.
[[nodiscard]] socket_address address_of(const descriptor& socket);
/// Sends what the socket takes at once. Returns the number of bytes, or -errno.
ssize_t send_now(const descriptor& socket, std::span<const std::byte> what) noexcept;

/// Whether this errno of accept(2) concerns one peer, the network to it or an interrupted call, so that accept(2) is to
/// be called again, as its manual page asks.
[[nodiscard]] bool is_transient(int number) noexcept;
/// Whether this errno of accept(2) means that this machine lacks a resource, so a later attempt may succeed.
[[nodiscard]] bool is_shortage(int number) noexcept;
/// Whether this errno of accept(2) means that the process or the system has no descriptors left.
[[nodiscard]] bool is_shortage_of_descriptors(int number) noexcept;

/// A descriptor in reserve for when no others are left. Giving it up makes room to accept and reject one peer, which
/// would otherwise be left waiting. It is not a socket. If it cannot be opened, held() is false.
class spare_descriptor {
 public:
  explicit spare_descriptor(system_calls& calls) noexcept : calls_(calls) { keep(); }

  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(kept_); }
  void give_up() noexcept { kept_.close(); }
  /// Opens the descriptor again unless it is held. Returns 0, or -errno on failure.
  int keep() noexcept;
  [[nodiscard]] bool restore() noexcept { return keep() == 0; }

 private:
  system_calls& calls_;
  descriptor kept_;
};

}  // namespace weft::net

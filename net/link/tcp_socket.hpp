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
/// whole seconds. Zero: never. A socket that is sent through needs a tcp_window_watch beside it.
void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after);

/// Sets the traffic class of the packets: ip(7), IP_TOS, and ipv6(7), IPV6_TCLASS. Empty: does nothing.
void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class);
/// Binds the socket to the first of `sources` that is of `target`'s address family. No sources: does nothing.
void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources);

// The calls of a set-up. `deadline` is that of the whole set-up; `step` names the call in its error. If the waiting
// task is destroyed, the call takes the socket over, is cancelled in the background, and then closes the socket.

/// Connects. Throws weft::error whose text begins with the step.
task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline);
/// Receives some bytes; none at the end of the stream. Throws weft::error.
task<std::size_t> receive_some(descriptor& socket, std::span<std::byte> where, const char* step, time_point deadline);
/// Sends some of the bytes. Throws weft::error.
task<std::size_t> send_some(descriptor& socket, std::span<const std::byte> what, const char* step, time_point deadline);
/// Waits until the peer has sent something, or has gone. Throws weft::error.
task<> wait_for_input(descriptor& socket, const char* step, time_point deadline);

/// Opens a listening socket. Throws weft::error.
[[nodiscard]] descriptor listen_at(const socket_address& address, system_calls& calls,
                                   std::optional<std::uint8_t> traffic_class);
/// The address to which the socket is bound. Throws weft::error.
[[nodiscard]] socket_address address_of(const descriptor& socket);

/// Whether this errno of accept(2) concerns one peer or the network to it, so accept(2) is to be retried as after
/// EAGAIN, as its manual page asks.
[[nodiscard]] bool is_transient(int number) noexcept;
/// Whether this errno of accept(2) means that this machine lacks a resource, so a later attempt may succeed.
[[nodiscard]] bool is_shortage(int number) noexcept;
/// Whether this errno of accept(2) means that the process or the system has no descriptors left.
[[nodiscard]] bool is_shortage_of_descriptors(int number) noexcept;

/// A descriptor in reserve for when no others are left. Giving it up allows one peer to be accepted and rejected, which
/// would otherwise be left waiting. It is not a socket.
class spare_descriptor {
 public:
  explicit spare_descriptor(system_calls& calls) noexcept : calls_(calls) { keep(); }

  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(kept_); }
  void give_up() noexcept { kept_.close(); }
  /// Opens the descriptor again unless it is held. 0, or -errno on failure.
  int keep() noexcept;
  [[nodiscard]] bool restore() noexcept { return keep() == 0; }

 private:
  system_calls& calls_;
  descriptor kept_;
};

}  // namespace weft::net

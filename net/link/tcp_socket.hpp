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

// TCP sockets as iWARP and plain streams want them.
namespace weft::net {

/// A TCP socket. Throws weft::error.
[[nodiscard]] descriptor open_socket(const socket_address& address, system_calls& calls);
/// No delay, and a peer that is silent for `dead_peer_after` is taken for dead, whether or not anything is on its way
/// to it: see tcp(7), TCP_USER_TIMEOUT and TCP_KEEPIDLE. The kernel counts an idle peer's time in whole seconds. Zero:
/// never. Whoever sends through the socket has a tcp_window_watch beside it.
void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after);

/// What the network shall make of the packets, see ip(7), IP_TOS, and ipv6(7), IPV6_TCLASS. None: nothing is done.
void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class);
/// Has a socket connect to `target` from the first of `sources` that is of its family. No sources: nothing is done.
void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources);

// The calls of a set-up, each with the deadline of the whole. `step` names one in the error that it fails with. The
// task that waits may be destroyed: then the call takes the socket away, is ended in the background, and closes it.

/// Connects. Throws weft::error whose words begin with the step.
[[nodiscard]] task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline);
/// Receives some bytes, none at the end of the stream. Throws weft::error.
[[nodiscard]] task<std::size_t> receive_some(descriptor& socket, std::span<std::byte> where, const char* step,
                                             time_point deadline);
/// Sends some of the bytes. Throws weft::error.
[[nodiscard]] task<std::size_t> send_some(descriptor& socket, std::span<const std::byte> what, const char* step,
                                          time_point deadline);
/// Waits until the peer has sent something, or has gone. Throws weft::error.
[[nodiscard]] task<> wait_for_input(descriptor& socket, const char* step, time_point deadline);

/// A socket that listens. Throws weft::error.
[[nodiscard]] descriptor listen_at(const socket_address& address, system_calls& calls,
                                   std::optional<std::uint8_t> traffic_class);
/// Where it is bound. Throws weft::error.
[[nodiscard]] socket_address address_of(const descriptor& socket);

/// Whether accept(2) failed for trouble of one peer, or of the network to it, which the manual wants taken for "try
/// again".
[[nodiscard]] bool is_transient(int number) noexcept;
/// Whether it failed because this machine is short of something, so that a later try may do better.
[[nodiscard]] bool is_shortage(int number) noexcept;
/// Whether it failed because the process or the system has no descriptors left.
[[nodiscard]] bool is_shortage_of_descriptors(int number) noexcept;

/// A descriptor that is kept for when there are no others: given up, it lets one peer be accepted, who is then turned
/// away instead of being left to wait. It is not a socket.
class spare_descriptor {
 public:
  explicit spare_descriptor(system_calls& calls) noexcept : calls_(calls) { keep(); }

  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(kept_); }
  void give_up() noexcept { kept_.close(); }
  /// Has one again. 0, or -errno if there is none to be had.
  int keep() noexcept;
  [[nodiscard]] bool restore() noexcept { return keep() == 0; }

 private:
  system_calls& calls_;
  descriptor kept_;
};

}  // namespace weft::net

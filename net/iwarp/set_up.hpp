// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/handshake.hpp>
#include <weft/runtime/clock.hpp>
#include <weft/runtime/descriptor.hpp>
#include <weft/runtime/socket_address.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

// The I/O of a connection's set-up: a handshake machine on a socket, with a deadline over all of it.
namespace weft::net::iwarp {

/// A TCP socket. Throws weft::error.
[[nodiscard]] descriptor open_socket(const socket_address& address, system_calls& calls);
/// No delay, and a peer that is silent for `dead_peer_after` is taken for dead, whether or not anything is on its way
/// to it: see tcp(7), TCP_USER_TIMEOUT and TCP_KEEPIDLE. The kernel counts an idle peer's time in whole seconds. Zero:
/// never.
void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after);

/// What the network shall make of the packets, see ip(7), IP_TOS, and ipv6(7), IPV6_TCLASS. None: nothing is done.
void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class);
/// Has a socket connect to `target` from the first of `sources` that is of its family. No sources: nothing is done.
void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources);

/// Connects. Throws weft::error whose words begin with the step.
[[nodiscard]] task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline);

/// Drives a handshake until it leaves the waiting state and its output is sent, or throws: errc::timed_out,
/// errc::peer_rejected, errc::protocol_error, errc::peer_vanished. Yields the bytes that came behind the peer's frame.
[[nodiscard]] task<std::vector<std::byte>> drive(descriptor& socket, initiator& machine, time_point deadline);
[[nodiscard]] task<std::vector<std::byte>> drive(descriptor& socket, responder& machine, time_point deadline);

/// Sends a handshake's output alone. `step` says what that is, where it fails.
[[nodiscard]] task<> send_output(descriptor& socket, handshake& machine, const char* step, time_point deadline);

/// Waits until the peer has sent something, or has gone.
[[nodiscard]] task<> wait_for_input(descriptor& socket, const char* step, time_point deadline);

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/handshake.hpp>
#include <weft/runtime/clock.hpp>
#include <weft/runtime/descriptor.hpp>
#include <weft/runtime/socket_address.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

// The I/O of a connection's set-up: a handshake machine on a socket, with a deadline over all of it.
namespace weft::net::iwarp {

/// A TCP socket for iWARP: no delay, and a dead peer is noticed within `dead_peer_after`. Throws weft::error.
[[nodiscard]] descriptor open_socket(const socket_address& address, system_calls& calls);
void set_dead_peer_time(descriptor& socket, std::chrono::milliseconds dead_peer_after);

/// Connects. Throws weft::error whose words begin with the step.
[[nodiscard]] task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline);

/// Drives a handshake until it leaves the waiting state and its output is sent, or throws: errc::timed_out,
/// errc::peer_rejected, errc::protocol_error, errc::peer_vanished. Yields the bytes that came behind the peer's frame.
[[nodiscard]] task<std::vector<std::byte>> drive(descriptor& socket, initiator& machine, time_point deadline);
[[nodiscard]] task<std::vector<std::byte>> drive(descriptor& socket, responder& machine, time_point deadline);

/// Sends a handshake's output alone.
[[nodiscard]] task<> send_output(descriptor& socket, handshake& machine, time_point deadline);

}  // namespace weft::net::iwarp

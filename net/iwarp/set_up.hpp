// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/handshake.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

// The I/O of a connection's set-up: a handshake machine on a socket, with a deadline over all of it.
namespace weft::net::iwarp {

/// Drives a handshake until it leaves the waiting state and its output is sent. Yields the bytes that came behind the
/// peer's frame. Throws errc::protocol_error if the handshake fails, errc::peer_vanished at the end of the stream, the
/// error of rejection() if the peer rejects, and what send_some() and receive_some() throw: errc::timed_out,
/// errc::canceled, or an error of the socket, such as ECONNRESET.
task<std::vector<std::byte>> drive(descriptor& socket, initiator& machine, time_point deadline);
task<std::vector<std::byte>> drive(descriptor& socket, responder& machine, time_point deadline);

/// Sends a handshake's output; reads nothing. Throws like send_some(), with `step` in the text.
task<> send_output(descriptor& socket, handshake& machine, const char* step, time_point deadline);

}  // namespace weft::net::iwarp

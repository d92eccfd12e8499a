// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/fabric_link.hpp>
#include <weft/net/fabric/hello.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <exception>
#include <memory>

// The I/O of a connection's set-up, over the TCP socket beside the fabric. What a worker does owns what it uses:
// libfabric may block, and the frame that waits for it may be destroyed meanwhile.
namespace weft::net::fabric {

/// Waits for the peer's next frame, and takes no byte behind it. Throws weft::error: errc::peer_vanished,
/// errc::protocol_error for what is no frame. A frame of another version is yielded for its number alone: check_kind().
task<frame> receive_frame(descriptor& socket, const char* step, time_point deadline);
/// Throws errc::protocol_error for a frame of another version, or of a kind that does not come now.
void check_kind(const frame& got, frame_kind wanted, const char* step);
/// Sends a frame. Throws weft::error.
task<> send_frame(descriptor& socket, const frame& what, const char* step, time_point deadline);
/// Sends a frame into the empty buffer of a new socket, which has room for it; what fails is lost.
void try_send_frame(const descriptor& socket, const frame& what) noexcept;

/// Makes an endpoint on a worker; with `peer`, that one is in its address vector. Throws weft::error.
task<std::unique_ptr<endpoint>> make_endpoint(std::shared_ptr<const device> home, const descriptor& socket,
                                              const set_up_options& options, const frame* peer);
/// Puts the peer's endpoint into the address vector, on a worker. Throws weft::error, and then the endpoint has gone.
task<std::unique_ptr<endpoint>> insert_peer(std::unique_ptr<endpoint> self, const frame& peer);
/// Ends an endpoint that no link has taken, on a worker.
task<> give_up(std::unique_ptr<endpoint> gone);
/// Makes a link of it, whose set-up goes on. It is as it was if there is no memory: throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<fabric_link> make_link(established& made);
/// Ends a set-up that has come as far as a link, and yields that: with a failure, gives it up and throws that on.
task<std::unique_ptr<fabric_link>> conclude(std::unique_ptr<fabric_link> link, const std::exception_ptr& failure);

/// Random, for frame::token. Throws weft::error.
[[nodiscard]] std::uint64_t draw_token();

}  // namespace weft::net::fabric

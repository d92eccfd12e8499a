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

// The I/O of a connection's set-up, over the TCP socket beside the fabric. Work on a worker owns all that it uses,
// because libfabric may block, and the coroutine that awaits the work may be destroyed meanwhile.
namespace weft::net::fabric {

/// Waits for the peer's next frame, and takes no byte behind it. Throws weft::error: errc::peer_vanished if the peer is
/// gone, errc::protocol_error for bytes that are no frame, errc::timed_out at the deadline. Of a frame of another
/// version, only the version is set: check_kind().
task<frame> receive_frame(descriptor& socket, const char* step, time_point deadline);
/// Throws errc::protocol_error for a frame of another version, or of another kind than `wanted`.
void check_kind(const frame& got, frame_kind wanted, const char* step);
/// Sends a frame. Throws weft::error.
task<> send_frame(descriptor& socket, const frame& what, const char* step, time_point deadline);
/// Sends a frame into the empty buffer of a new socket, which has room for it; ignores failures.
void try_send_frame(const descriptor& socket, const frame& what) noexcept;

/// Makes an endpoint on a worker. If `peer` is not null, the new endpoint's address vector has the peer's endpoint.
/// Throws weft::error.
task<std::unique_ptr<endpoint>> make_endpoint(std::shared_ptr<const device> home, const descriptor& socket,
                                              const set_up_options& options, const frame* peer);
/// Inserts the peer's endpoint into the address vector, on a worker. If it throws weft::error, `self` has been closed.
task<std::unique_ptr<endpoint>> insert_peer(std::unique_ptr<endpoint> self, const frame& peer);
/// Closes an endpoint that no link has taken, on a worker.
task<> give_up(std::unique_ptr<endpoint> gone);
/// Makes a link, and begins the rest of its set-up. Throws std::bad_alloc, and then leaves `made` unchanged.
[[nodiscard]] std::unique_ptr<fabric_link> make_link(established& made);
/// Ends a link's set-up, and yields the link. Gives the link up and throws if the set-up was late (errc::timed_out), or
/// with a `failure`.
task<std::unique_ptr<fabric_link>> conclude(std::unique_ptr<fabric_link> link, const std::exception_ptr& failure);

}  // namespace weft::net::fabric

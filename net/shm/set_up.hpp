// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/shm/address.hpp>
#include <weft/net/shm/handshake.hpp>
#include <weft/net/shm/link.hpp>
#include <weft/net/shm/packets.hpp>
#include <weft/net/shm/peer_user.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

// The I/O of a connection's set-up. Receiving waits until the socket is readable; the system calls then do not block.
namespace weft::net::shm {

/// A frame from the peer; if it is of this version, with exactly the descriptors that its kind carries.
class received_frame {
 public:
  received_frame() noexcept {}

  frame contents;
  std::array<descriptor, most_descriptors> descriptors;
};

/// Waits for the peer's next frame. Throws weft::error: errc::timed_out, errc::canceled, errc::peer_vanished;
/// errc::protocol_error for an invalid frame or a wrong number of descriptors; EMFILE if this process has no descriptor
/// left for them; another errno if the wait or recvmsg(2) fails. Of a frame of another version only the version is
/// valid: see check_kind(). After an error, no descriptor of the packet stays open.
task<received_frame> receive_frame(descriptor& socket, const char* step, time_point deadline);
/// Throws errc::protocol_error for a frame of another version, or of another kind than `wanted`.
void check_kind(const frame& got, frame_kind wanted, const char* step);
/// Waits for a packet, and discards it with its descriptors. Throws weft::error.
task<> discard_packet(descriptor& socket, const char* step, time_point deadline);

/// Sends a frame without waiting, because a new socket has room for it. Returns 0 or -errno.
int try_send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors = {}) noexcept;
/// Sends a frame as try_send_frame() does. Throws weft::error.
void send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors, const char* step);

/// Makes the link on the calling executor, whose event driver forgets `socket`; the link takes the socket over.
[[nodiscard]] std::unique_ptr<net::link> finish_set_up(channel memory, descriptor& socket, const frame& agreed,
                                                       std::string peer, std::shared_ptr<software::domain> home,
                                                       std::shared_ptr<net::receive_queue> receives);

}  // namespace weft::net::shm

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

// The I/O of a connection's set-up. Sockets are waited for and then called without waiting.
namespace weft::net::shm {

/// A packet of the peer's with the descriptors that came with it, which are as many as belong to it.
class received_frame {
 public:
  received_frame() noexcept {}

  frame contents;
  std::array<descriptor, most_descriptors> descriptors;
};

/// Waits for the peer's next frame. Throws weft::error: errc::peer_vanished, errc::protocol_error for what is no frame
/// or comes with other descriptors than belong to it, EMFILE where this process has no room for these. A frame of
/// another version is yielded for its number alone: see check_kind(). No descriptor of an error stays open.
task<received_frame> receive_frame(descriptor& socket, const char* step, time_point deadline);
/// Throws errc::protocol_error for a frame of another version, or of a kind that does not come now.
void check_kind(const frame& got, frame_kind wanted, const char* step);
/// Waits for a packet and throws it away, with whatever came along.
task<> discard_packet(descriptor& socket, const char* step, time_point deadline);

/// Sends a frame: a new socket has room for it, so that there is nothing to wait for. Returns 0 or -errno.
int try_send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors = {}) noexcept;
/// Throws weft::error.
void send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors, const char* step);

/// Has the event driver forget the socket, and makes the link, on the executor that calls.
[[nodiscard]] std::unique_ptr<net::link> finish_set_up(channel memory, descriptor& socket, const frame& agreed,
                                                       std::string peer, std::shared_ptr<software::domain> home,
                                                       std::shared_ptr<net::receive_queue> receives);

}  // namespace weft::net::shm

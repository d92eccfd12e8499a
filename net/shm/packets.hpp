// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>

#include <cstddef>
#include <span>

// Packets on the Unix socket of a connection, which may carry file descriptors: unix(7), SCM_RIGHTS. No call blocks.
namespace weft::net::shm {

/// The most descriptors in a packet.
inline constexpr std::size_t most_descriptors = 1;

/// Sends a packet. Returns 0 or -errno.
int send_packet(const descriptor& socket, std::span<const std::byte> bytes,
                std::span<const int> descriptors = {}) noexcept;
/// Wakes the peer up by a packet, whose contents mean nothing; it may carry a file. Returns 0 or -errno.
int send_wake_up(const descriptor& socket, std::span<const int> file = {}) noexcept;

struct packet {
  int failure = 0;                ///< 0 or -errno; -EAGAIN: no packet has arrived yet
  std::size_t length = 0;         ///< bytes stored in the room; 0: a failure, the end of the stream, or an empty packet
  std::size_t descriptors = 0;    ///< number received, including those for which `files` had no room
  bool lost_descriptors = false;  ///< the packet had more, for which the call or the process had no room
};

/// Takes the next packet with its descriptors; descriptors for which `files` has no room are closed.
[[nodiscard]] packet take_packet(const descriptor& socket, std::span<std::byte> room,
                                 std::span<descriptor> files) noexcept;

}  // namespace weft::net::shm

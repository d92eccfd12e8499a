// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>

#include <cstddef>
#include <span>

// Packets on the Unix socket of a connection, with descriptors of files in them: unix(7), SCM_RIGHTS. Nothing waits.
namespace weft::net::shm {

/// The most descriptors in a packet.
inline constexpr std::size_t most_descriptors = 1;

/// Returns 0 or -errno.
int send_packet(const descriptor& socket, std::span<const std::byte> bytes,
                std::span<const int> descriptors = {}) noexcept;
/// What a packet that wakes the peer up holds says nothing; a file may come along. Returns 0 or -errno.
int send_wake_up(const descriptor& socket, std::span<const int> file = {}) noexcept;

struct packet {
  int failure = 0;         ///< -errno; -EAGAIN: there is none yet
  std::size_t length = 0;  ///< of what came, cut to the room for it; 0: the end, or a packet of no bytes
  std::size_t descriptors = 0;
  bool lost_descriptors = false;  ///< some did not fit, or this process has no room for them
};

/// Takes the next packet, and all descriptors that are in it: those that `files` has no room for are closed.
[[nodiscard]] packet take_packet(const descriptor& socket, std::span<std::byte> room,
                                 std::span<descriptor> files) noexcept;

}  // namespace weft::net::shm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>

#include <sys/socket.h>

namespace weft::net::shm {

/// Who is at the other end: for an acceptor who has connected, for a connector who listens, as it was then. Throws
/// weft::error. See SO_PEERCRED of unix(7).
[[nodiscard]] ucred peer_of(const descriptor& socket);
/// Whether it may be any user without a number in the user namespace of this process. It is said to be the overflow
/// user: see user_namespaces(7).
[[nodiscard]] bool has_no_number(const ucred& peer) noexcept;
/// Whether it has the rights of this process. Without a path there are no permissions to say who may connect, and any
/// user may take any name: so a peer has to be of the same user, root included, who would otherwise trust a name that
/// somebody else has taken. One who has no number in the user namespace of this process is not, because all who have
/// none appear as the same user, and this process itself may.
[[nodiscard]] bool is_same_user(const ucred& peer) noexcept;

}  // namespace weft::net::shm

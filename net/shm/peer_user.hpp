// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>

#include <sys/socket.h>

namespace weft::net::shm {

/// The credentials of the other end: for an acceptor, of the connecting process, as they were at connect(2); for a
/// connector, of the listening process, as they were at listen(2). Throws weft::error. See SO_PEERCRED of unix(7).
[[nodiscard]] ucred peer_of(const descriptor& socket);
/// Whether the peer may be a user that is unmapped in this process's user namespace. All such users appear as the
/// overflow user: see user_namespaces(7).
[[nodiscard]] bool has_no_number(const ucred& peer) noexcept;
/// Whether the peer runs as the same user as this process. A peer behind an abstract name must be of the same user,
/// because such a name has no permissions, and any user may take it. Root has to keep this rule as well, or it would
/// trust a name that somebody else has taken. An unmapped user never counts as the same user, because all unmapped
/// users appear as one, maybe as the user of this process.
[[nodiscard]] bool is_same_user(const ucred& peer) noexcept;

}  // namespace weft::net::shm

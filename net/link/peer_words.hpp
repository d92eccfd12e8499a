// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/native_protocol.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace weft::net {

/// Private data with which an end rejects a peer for want of resources.
inline constexpr std::string_view no_receives_left = "weft: no receives left";
inline constexpr std::string_view no_descriptors_left = "weft: no descriptors left";
inline constexpr std::string_view no_places_left = "weft: no connections left";
/// Private data with which an end rejects a peer that speaks other versions of weft's protocol.
inline constexpr std::string_view no_common_version = "weft: no common version";

/// Private data with which an end rejects a rail that would join a connection unknown to that end.
inline constexpr std::string_view no_such_connection = "weft: no such connection";

/// The error of a set-up that the peer rejected with this private data; its text begins with `step`. ENOBUFS if the
/// peer has no receives left or its maximum of connections, EMFILE if it has no descriptors: a later attempt may
/// succeed. errc::protocol_error if it speaks other versions, errc::peer_restarted if it does not know the connection;
/// else errc::peer_rejected.
[[nodiscard]] error rejection(std::span<const std::byte> said, const std::string& step);

/// The error for a weft peer that speaks only these versions of the protocol, while this end speaks others.
[[nodiscard]] error other_versions(const version_range& theirs);

/// Private data quoted for an error: printable text as it is, anything else in hexadecimal digits.
[[nodiscard]] std::string in_words(std::span<const std::byte> said);

}  // namespace weft::net

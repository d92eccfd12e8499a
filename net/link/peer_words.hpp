// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/native_protocol.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace weft::net {

/// Private data with which an end turns a peer away that it would have taken, if only it could.
inline constexpr std::string_view no_receives_left = "weft: no receives left";
inline constexpr std::string_view no_descriptors_left = "weft: no descriptors left";
inline constexpr std::string_view no_places_left = "weft: no connections left";
/// Private data with which an end turns away a peer that speaks other versions of weft's protocol.
inline constexpr std::string_view no_common_version = "weft: no common version";

/// Private data with which an end turns away a rail of a connection that it does not know.
inline constexpr std::string_view no_such_connection = "weft: no such connection";

/// Why a set-up was rejected with this private data: `step`, and what the peer says. ENOBUFS for want of receives
/// or of places at its listener, EMFILE for want of descriptors, which may be had later; errc::protocol_error where it
/// speaks other versions; else errc::peer_rejected.
[[nodiscard]] error rejection(std::span<const std::byte> said, const std::string& step);

/// The error of a weft peer that speaks only these versions of the protocol, while this end speaks others.
[[nodiscard]] error other_versions(const version_range& theirs);

/// What a peer says, to be quoted in an error: text as it is, anything else in hexadecimal digits.
[[nodiscard]] std::string in_words(std::span<const std::byte> said);

}  // namespace weft::net

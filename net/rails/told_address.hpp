// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The accepting end announces where it listens, because the peer may have been given only one of its addresses.
namespace weft::net::rails {

/// Makes a control message with this end's address number `place`, "10.0.0.2:7471" or "[fd77::1]:7471". Empty for an
/// address that is useless to others, such as a wildcard, a name or a link-local IPv6 address, and from place max_rails
/// on.
[[nodiscard]] std::optional<control> tell_address(std::string_view address, std::size_t place);
/// Returns the address in a peer's message, which is hostile until checked; empty if no listener can have it. A
/// loopback address is accepted only from a peer that has one itself, so that no peer can point this end at services of
/// this machine.
[[nodiscard]] std::optional<std::string> told_address(const control& said, std::string_view peer);

}  // namespace weft::net::rails

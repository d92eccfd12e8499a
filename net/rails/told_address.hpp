// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The accepting end announces where it listens, because the peer may have been given only one of its addresses.
namespace weft::net::rails {

/// A control message with the address, "10.0.0.2:7471" or "[fd77::1]:7471", which is the end's `place`-th. Empty for an
/// address that is useless to others: a wildcard, a name, or a link-local IPv6 address.
[[nodiscard]] std::optional<control> tell_address(std::string_view address, std::size_t place);
/// The address in a peer's message, which is hostile until checked: empty if no listener can have it. Loopback
/// addresses are accepted only if the peer has one itself, so that it cannot point this end at services of its own
/// machine.
[[nodiscard]] std::optional<std::string> told_address(const control& said, std::string_view peer);

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The accepting end tells where else it listens, so that who was given one of its addresses finds the others.
namespace weft::net::rails {

/// A control message that tells the address, "10.0.0.2:7471" or "[fd77::1]:7471", which is the end's `place`-th. Empty
/// for one that says nothing to others: any address, a name, or an IPv6 address that only one link of the network
/// knows.
[[nodiscard]] std::optional<control> tell_address(std::string_view address, std::size_t place);
/// The address that a peer tells, which is hostile until checked: empty for one that no listener can have. Loopback
/// addresses only if the peer has one itself, so that it points nobody at the services of this machine.
[[nodiscard]] std::optional<std::string> told_address(const control& said, std::string_view peer);

}  // namespace weft::net::rails

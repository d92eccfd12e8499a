// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>

namespace weft::net::verbs {

/// Listens by an id of the connection manager, which delivers whole requests, so no peer stays half-open. At most
/// listen_options::max_half_open requests wait to be taken; further ones are rejected. Throws weft::error if it cannot
/// listen; by then the address is free again.
task<std::unique_ptr<link_listener>> listen(std::shared_ptr<device> home, std::shared_ptr<domain> memory,
                                            socket_address address, listen_options options);

}  // namespace weft::net::verbs

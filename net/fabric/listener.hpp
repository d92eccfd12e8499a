// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>

namespace weft::net::fabric {

/// Listens on a TCP socket, because the set-up is over TCP. On the listening executor. Throws weft::error.
[[nodiscard]] std::unique_ptr<net::link_listener> listen(const socket_address& address,
                                                         std::shared_ptr<const device> home,
                                                         std::shared_ptr<domain> memory, const listen_options& options);

}  // namespace weft::net::fabric

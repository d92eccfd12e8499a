// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>

namespace weft::net::iwarp {

using software::domain;

/// Listens for TCP peers on the running executor. A peer is yielded once it has sent a valid MPA request;
/// socket_listener deals with the others. Throws weft::error.
[[nodiscard]] std::unique_ptr<net::link_listener> listen(const socket_address& address, std::shared_ptr<domain> home,
                                                         const iwarp_options& of_device, const listen_options& options);

}  // namespace weft::net::iwarp

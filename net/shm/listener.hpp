// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/shm/address.hpp>
#include <weft/net/software/domain.hpp>

#include <memory>

namespace weft::net::shm {

/// Listens for processes of this machine, and yields each peer once its hello has arrived. For peers that send no
/// hello, see socket_listener. Unless the socket has a path, rejects processes of other users.
[[nodiscard]] std::unique_ptr<net::link_listener> listen(listening_socket at, std::shared_ptr<software::domain> home,
                                                         const shm_options& of_device, const listen_options& options);

}  // namespace weft::net::shm

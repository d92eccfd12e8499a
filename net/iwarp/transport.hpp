// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/transport.hpp>

#include <memory>

namespace weft::net::iwarp {

/// iWARP in user space: MPA, DDP and RDMAP over TCP sockets (RFC 5040, 5041, 5044, 6581). Needs no device.
[[nodiscard]] std::unique_ptr<net::transport> open_transport();

}  // namespace weft::net::iwarp

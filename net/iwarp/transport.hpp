// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <memory>

namespace weft::net::iwarp {

/// The transport for iWARP in user space: MPA, DDP and RDMAP over TCP sockets (RFC 5040, 5041, 5044, 6581). Needs no
/// device. `calls`, which tests replace, provides the randomness of keys; sockets use their executor's system calls.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(const iwarp_options& options = {},
                                                             system_calls& calls = system_calls::kernel());
/// Opens the same transport on `home`, a domain that other software transports may share.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(const iwarp_options& options,
                                                             std::shared_ptr<software::domain> home);

}  // namespace weft::net::iwarp

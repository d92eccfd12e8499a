// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <memory>

namespace weft::net::shm {

/// Opens the transport through shared memory, within one machine: between two processes, or in one. Needs no device.
///
/// "HOST:PORT", where HOST is this machine, reaches processes of the same user and network namespace; "unix:PATH"
/// reaches processes of any user, if the permissions of the path allow it. `calls` is for tests: the domain makes its
/// calls there, for random keys and direct memory, while sockets use their executor's system calls. Throws
/// errc::invalid_argument for wrong options.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(const shm_options& options = {},
                                                             system_calls& calls = system_calls::kernel());
/// Opens the transport on a domain that other software transports share. Throws errc::invalid_argument for wrong
/// options.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(const shm_options& options,
                                                             std::shared_ptr<software::domain> home);

}  // namespace weft::net::shm

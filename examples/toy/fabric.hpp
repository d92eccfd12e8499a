// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <memory>

namespace weft::toy {

/// A fabric whose two ends are in one process: written from docs/transports.md, to see whether that page is enough.
///
/// A listener is found in a table of the process by its port. An end executes its own requests, on its own executor,
/// against the other end's keys and posted receives, as an RDMA device would: the other executor is needed only to hear
/// of what has come. See link.hpp.
[[nodiscard]] std::unique_ptr<net::transport> open_transport();

}  // namespace weft::toy

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric_info.hpp>

#include <vector>

namespace weft::net {

/// All fabrics but those of add_transport(), and whether device::open() can open each of them now: "shm", each RDMA
/// device, each provider of libfabric, "iwarp". Opens each for a moment, without a pool; libfabric stays loaded. A
/// device that can be opened may still have no active port. Blocks for milliseconds if there are RDMA devices, or if
/// the build has libfabric.
[[nodiscard]] std::vector<fabric_info> list_fabrics();

}  // namespace weft::net

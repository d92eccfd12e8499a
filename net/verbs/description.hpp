// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric_info.hpp>
#include <weft/net/verbs/calls.hpp>

#include <vector>

namespace weft::net::verbs {

/// Each RDMA device of this machine, opened for a moment; one without a device, named "verbs", where there is none.
[[nodiscard]] std::vector<fabric_info> describe_devices(rdma_calls& library);

}  // namespace weft::net::verbs

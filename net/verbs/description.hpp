// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric_info.hpp>
#include <weft/net/verbs/calls.hpp>

#include <vector>

namespace weft::net::verbs {

/// Describes each RDMA device of this machine, after opening it briefly. If there is none, a single entry "verbs" says
/// why.
[[nodiscard]] std::vector<fabric_info> describe_devices(rdma_calls& library);

}  // namespace weft::net::verbs

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::fabric {

/// Networks through libfabric: the provider of that name ("efa", "tcp", "verbs;ofi_rxm"), or with no name the one that
/// libfabric would choose. Loads libfabric at the first call. Throws weft::error: errc::not_supported where there is no
/// such provider, with the names of those that there are, or no libfabric.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider);

/// The providers that could be opened by their names, as fi_info(1) lists them. Loads libfabric, and throws as above
/// where there is none.
[[nodiscard]] std::vector<std::string> list_providers();

class fabric_calls;
/// Seam: the same on another library than the real one.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider, fabric_calls& library);

}  // namespace weft::net::fabric

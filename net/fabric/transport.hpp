// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::fabric {

/// Opens a network through libfabric: the provider of that name ("efa", "tcp", "verbs;ofi_rxm"), or with an empty name
/// the one that libfabric would choose. Loads libfabric at the first call. Throws weft::error: errc::not_supported if
/// there is no libfabric, or no such provider, with the names of the providers that there are.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider);

/// The names of the providers that can be opened, as fi_info(1) lists them. Loads libfabric; throws as open_transport()
/// does if there is none.
[[nodiscard]] std::vector<std::string> list_providers();

class fabric_calls;
/// Seam: opens a transport on another library than the real one.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider, fabric_calls& library);

}  // namespace weft::net::fabric

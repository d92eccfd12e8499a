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
/// there is no libfabric, no such provider (with the names of those that there are), or one that weft cannot use.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider);

/// The names of the providers with FI_EP_RDM on this machine, as fi_info(1) lists them. Loads libfabric; throws as
/// open_transport() does if there is no libfabric.
[[nodiscard]] std::vector<std::string> list_providers();

class fabric_calls;
/// For tests: opens a transport over `library` in place of the real one.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view provider, fabric_calls& library);

}  // namespace weft::net::fabric

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device/found_transport.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>

#include <string_view>
#include <vector>

namespace weft::net {

/// Opens the transports that "auto" finds, or those of a list of names: "verbs:mlx5_0,iwarp", each with its own part of
/// `options`. Throws weft::error.
[[nodiscard]] std::vector<found_transport> open_transports(std::string_view names, const device_options& options);

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>

#include <string>
#include <string_view>

namespace info {

/// A device of one fabric with a pool that is as small as the program's needs, because memory may be locked only so
/// far.
[[nodiscard]] weft::net::device open_fabric(std::string_view name);

}  // namespace info

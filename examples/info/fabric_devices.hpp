// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/net/fabric_info.hpp>

#include <string_view>

namespace info {

/// A device of one fabric with a pool that is as small as the program's needs, because memory may be locked only so
/// far.
[[nodiscard]] weft::net::device open_fabric(std::string_view name);

/// Whether a fabric is to be tried: the one of that name or, with none, all but the providers of libfabric, of which
/// there are many that nobody has chosen, and some of which take seconds.
[[nodiscard]] inline bool is_asked_for(const weft::net::fabric_info& each, std::string_view name) {
  return name.empty() ? !each.name.starts_with("fabric") : each.name == name;
}

}  // namespace info

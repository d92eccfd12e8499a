// SPDX-License-Identifier: Apache-2.0
// The Soft-RoCE device of the virtual machine (tests/vm).
#pragma once

#include <weft/mr/usage.hpp>

namespace weft::net::verbs {

inline constexpr const char* device_name = "rxe0";
inline constexpr const char* any_address = "10.77.0.1:0";
inline constexpr mr::usage open_wide = mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst;

}  // namespace weft::net::verbs

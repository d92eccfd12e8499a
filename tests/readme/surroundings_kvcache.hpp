// SPDX-License-Identifier: Apache-2.0
// What fragments about examples/kvcache find declared.
#pragma once

#include "surroundings.hpp"

namespace surroundings_kvcache {

using namespace surroundings_plain;

extern mr::region cache;
extern mr::remote_region lent;
extern std::vector<net::block_pair> pages;
extern std::uint64_t before, all, page_bytes;
extern std::uint32_t number;

}  // namespace surroundings_kvcache

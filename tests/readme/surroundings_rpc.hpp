// SPDX-License-Identifier: Apache-2.0
// What fragments about examples/rpc find declared.
#pragma once

#include "surroundings.hpp"
#include <rpc/client.hpp>
#include <rpc/server.hpp>

namespace surroundings_rpc {

using namespace surroundings_plain;

task<> read_block(std::string_view, mr::buffer&);

}  // namespace surroundings_rpc

// SPDX-License-Identifier: Apache-2.0
// What fragments of the guide find declared.
#pragma once

#include "surroundings.hpp"

namespace surroundings_guide {

using namespace surroundings_plain;

struct some_hello {};
struct some_request {};
some_hello parse_hello(std::span<const std::byte>);
some_request parse_request(std::span<const std::byte>);
task<> send_welcome(net::connection&, net::device&, const some_hello&);
task<> answer(net::connection);
task<> answer(net::connection&, net::device&, some_request);
task<> say(net::device&, std::string address, std::string text);
task<> serve_one(net::listener&);

}  // namespace surroundings_guide

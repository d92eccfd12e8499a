// SPDX-License-Identifier: Apache-2.0
// Prints why a device cannot be opened that this build has no transport for: fails if it can.
#include <weft/weft.hpp>

#include <cstdio>
#include <span>

int main(int argc, char** argv) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  try {
    const auto device = weft::net::device::open(arguments[1]);
    return 1;
  } catch (const weft::error& why) {
    std::puts(why.what());
    return why.code() == weft::errc::not_supported ? 0 : 1;
  }
}

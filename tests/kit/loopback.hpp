// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>

namespace weft::test {

/// An address of the loopback, in text and without a port, for this program to listen on. Programs that run at once
/// have different ones, because each address has ports of its own: one that connects thousands of times leaves the
/// others theirs.
[[nodiscard]] inline std::string own_loopback() {
  const int id = ::getpid();
  const auto part = [&](int shift, int mask) { return std::to_string(id >> shift & mask); };
  return "127." + std::to_string(64 + (id >> 16 & 63)) + "." + part(8, 255) + "." + part(0, 255);
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// What an outside project would start with: a coroutine on an executor, and a device.
#include <weft/weft.hpp>

#include <cstdio>
#include <string>

namespace {

weft::task<std::string> name_of(weft::net::device& device) { co_return std::string(device.name()); }

}  // namespace

int main() {
  auto device = weft::net::device::open("iwarp");
  weft::executor executor;
  const std::string name = executor.run(name_of(device));
  std::puts(name.c_str());
  return name.empty() ? 1 : 0;
}

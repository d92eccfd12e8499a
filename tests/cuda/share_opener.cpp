// SPDX-License-Identifier: Apache-2.0
// The other process that opens shared memory of a GPU: share_opener.hpp.
#include "share_opener.hpp"

#include <weft/mr/cuda.hpp>
#include <weft/runtime/error.hpp>

#include <unistd.h>

#include <cstdio>

#include "stand_in_control.hpp"

namespace weft::test {
namespace {

void use(mr::memory_device& gpu, const share_order& order) {
  std::byte* const memory = gpu.open_share(order.shared, order.bytes);
  std::vector<std::byte> content(order.bytes);
  const auto stream = gpu.open_stream();
  stream->copy(content.data(), memory, content.size()).value();
  stream->synchronize();
  static_cast<void>(!::write(STDOUT_FILENO, content.data(), content.size()));
  for (std::byte& one : content) one = ~one;
  stream->copy(memory, content.data(), content.size()).value();
  stream->synchronize();
  gpu.close_share(memory);
}

// The driver counts how often a handle is open, and yields the same address each time.
bool open_twice(mr::memory_device& gpu, const share_order& order) {
  std::byte* const memory = gpu.open_share(order.shared, order.bytes);
  try {
    std::byte* const again = gpu.open_share(order.shared, order.bytes);
    gpu.close_share(memory);
    gpu.close_share(again);
    return again == memory;
  } catch (const error&) {
    gpu.close_share(memory);
    throw;
  }
}

int serve() {
  share_order order;
  if (::read(STDIN_FILENO, &order, sizeof order) != sizeof order) return 2;
  const stand_in driver;
  const auto gpu = mr::open_cuda({.device = order.device, .library = stand_in::library()});
  driver.fail_nth(order.fail_nth);
  try {
    const bool same = open_twice(*gpu, order);
    driver.fail_nth(0);
    if (!same || driver.counts().opened != 0) return 3;
    use(*gpu, order);
  } catch (const error& failure) {
    static_cast<void>(std::fprintf(stderr, "%s", failure.what()));
    driver.fail_nth(0);
    return driver.counts().opened == 0 ? 1 : 4;
  }
  return driver.counts().opened == 0 ? 0 : 5;
}

}  // namespace
}  // namespace weft::test

int main() { return weft::test::serve(); }

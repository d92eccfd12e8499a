// SPDX-License-Identifier: Apache-2.0
// share_lender BYTES: a process with memory of a GPU, filled with fill_with(1). Writes the mr::device_share of it to
// standard output, and all of the memory as it is then for each byte of standard input, until that ends.
#include <weft/mr/cuda.hpp>
#include <weft/mr/device_memory.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "sharing.hpp"
#include "stand_in_control.hpp"

namespace {

using namespace weft;

void say(std::span<const std::byte> all) {
  static_cast<void>(std::fwrite(all.data(), 1, all.size(), stdout));
  std::fflush(stdout);
}

void lend(std::size_t bytes) {
  const test::stand_in driver;
  const auto gpu = mr::open_cuda({.library = test::stand_in::library()});
  const mr::device_memory memory = gpu->allocate(bytes);
  std::vector<std::byte> content(bytes);
  test::fill_with(content, 1);
  driver.poke(memory.bytes(), content);
  const mr::device_share shared = gpu->share(memory.bytes());
  say(std::as_bytes(std::span(&shared, 1)));
  for (char asked = 0; ::read(STDIN_FILENO, &asked, 1) == 1;) say(driver.peek(memory.bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    lend(std::strtoull(argv[1], nullptr, 10));
    return 0;
  } catch (const std::exception& why) {
    std::fprintf(stderr, "share_lender: %s\n", why.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
// memory_mimalloc mimalloc COUNT: allocates and frees so many times; memory_mimalloc report 0: how long that takes. A
// program of its own, because the library takes malloc's place.
#include <mimalloc.h>

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace {

constexpr std::size_t message_bytes = 4096;

void with_mimalloc(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    void* const item = ::mi_malloc(message_bytes);
    asm volatile("" : : "g"(item) : "memory");
    ::mi_free(item);
  }
}

int report() {
  using wall = std::chrono::steady_clock;
  constexpr std::uint64_t rounds = 300'000;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = wall::now();
    with_mimalloc(rounds);
    best = std::min(best, std::chrono::duration<double>(wall::now() - start).count());
  }
  std::printf("{\"mimalloc\": %.1f}\n", best * 1e9 / static_cast<double>(rounds));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "report") return report();
  if (argc != 3 || std::string_view(argv[1]) != "mimalloc") {
    std::fputs("usage: memory_mimalloc mimalloc COUNT | report 0\n", stderr);
    return 2;
  }
  with_mimalloc(std::strtoull(argv[2], nullptr, 10));
  std::puts("{\"allocations\": 0}");
  return 0;
}

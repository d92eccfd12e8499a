// SPDX-License-Identifier: Apache-2.0
#include "count_allocations.hpp"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> count{0};

void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  count.fetch_add(1, std::memory_order_relaxed);
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole != 0 ? whole : alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return count_and_allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace weft::bench {

std::uint64_t allocations() noexcept { return count.load(); }

int run_case(int argc, char** argv, const cases& known, const char* usage) noexcept try {
  const auto found = argc == 3 ? known.find(argv[1]) : known.end();
  if (found == known.end()) {
    std::fprintf(stderr, "usage: %s CASE COUNT%s\n", argv[0], usage);
    return 2;
  }
  found->second(std::strtoull(argv[2], nullptr, 10));
  std::printf("{\"allocations\": %llu}\n", static_cast<unsigned long long>(allocations()));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "%s: %s\n", argv[0], why.what());
  return 1;
}

}  // namespace weft::bench

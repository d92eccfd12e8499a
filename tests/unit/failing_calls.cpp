// SPDX-License-Identifier: Apache-2.0
#include "mr_support.hpp"

#include <cstdlib>
#include <new>

namespace {
constinit thread_local std::size_t allocation_count = 0;
}

std::size_t weft::test::allocations() noexcept { return allocation_count; }

// The sanitizers have an allocator of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEFT_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEFT_TEST_SANITIZED
#endif
#endif

#if !defined(WEFT_TEST_SANITIZED)

void* operator new(std::size_t bytes) {
  ++allocation_count;
  if (void* const memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif

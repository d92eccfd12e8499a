// SPDX-License-Identifier: Apache-2.0
#include "failing_calls.hpp"

#include <cstdlib>
#include <new>

#include "sanitized.hpp"

namespace {

constinit thread_local std::size_t allocation_count = 0;
constinit std::atomic<std::int64_t> calls_left{0};  // until one fails; 0: none does, or it has failed
constinit std::atomic<std::int64_t> in_a_row{1};    // how many fail

}  // namespace

namespace weft::test {

std::size_t allocations() noexcept { return allocation_count; }

void fail_call(std::int64_t number, std::int64_t count) noexcept {
  calls_left = 0;
  in_a_row = number > 0 ? count : 1;
  calls_left = number;
}

bool call_has_failed() noexcept { return calls_left <= 0; }

bool fails() noexcept {
  const std::int64_t last = 2 - in_a_row.load(std::memory_order_relaxed);
  if (calls_left.load(std::memory_order_relaxed) < last) return false;
  const std::int64_t left = calls_left.fetch_sub(1);
  return left <= 1 && left >= last;
}

}  // namespace weft::test

// The thread sanitizer has an allocator of its own that lets nobody take its place.
#if !defined(WEFT_TEST_TSAN)

namespace {

void* allocate(std::size_t bytes) noexcept {
  ++allocation_count;
  return weft::test::fails() ? nullptr : std::malloc(bytes != 0 ? bytes : 1);
}

void* allocate_or_throw(std::size_t bytes) {
  if (void* const memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// All that are not aligned, so that nothing from here is freed by the sanitizers' own, or the other way round.
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

#endif

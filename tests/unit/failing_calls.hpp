// SPDX-License-Identifier: Apache-2.0
// An allocator that counts, and calls that fail when a test says so.
#pragma once

#include "kit/standard.hpp"

namespace weft::test {

/// How often this thread has called operator new; not counted where the sanitizers have an allocator of their own.
std::size_t allocations() noexcept;

/// The n-th call from now on that can fail does, on whichever thread: allocations, mappings of a counting_memory and
/// registrations of a recording_domain; 0: none does. With a count, so do those that follow it.
void fail_call(std::int64_t number, std::int64_t count = 1) noexcept;
/// Whether it has come to that, or there was nothing to fail.
bool call_has_failed() noexcept;
/// Counts one such call: whether it is to fail.
bool fails() noexcept;

}  // namespace weft::test

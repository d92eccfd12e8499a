// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::bench {

/// How often this process has called operator new.
std::uint64_t allocations() noexcept;

/// Prints it as JSON, at the end of a program.
void print_allocations() noexcept;

}  // namespace weft::bench

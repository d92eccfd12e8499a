// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "kit/standard.hpp"

namespace weft::bench {

/// How often this process has called operator new.
std::uint64_t allocations() noexcept;

using cases = std::map<std::string_view, void (*)(std::uint64_t count)>;

/// What a program does that is called with a CASE and a COUNT: runs it, and prints the allocations as JSON. `usage` is
/// of what else it can be asked for.
int run_case(int argc, char** argv, const cases& known, const char* usage = "") noexcept;

}  // namespace weft::bench

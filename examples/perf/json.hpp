// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report.hpp"

namespace perf {

/// The report for programs, indented: circumstances, then one object for each outcome. Times are in nanoseconds.
[[nodiscard]] std::string to_json(const report& all);

}  // namespace perf

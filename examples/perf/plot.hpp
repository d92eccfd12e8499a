// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report.hpp"

namespace perf {

/// The report as a picture in SVG 1.1: latency and bandwidth over size, each where there is any, on logarithmic axes.
[[nodiscard]] std::string to_svg(const report& all);

}  // namespace perf

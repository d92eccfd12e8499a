// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perf {

/// "64", "4K", "1M", "1G": powers of 1024, from 1 byte to most_bytes. Throws std::invalid_argument.
[[nodiscard]] std::uint32_t parse_size(std::string_view text);

/// "64,4K,1M", "64-1M" (the powers of two from the one to the other), "all" (1-4M), in any mixture.
[[nodiscard]] std::vector<std::uint32_t> parse_sizes(std::string_view text);

/// "64", "4K", "1M"; a number that is none of these as it is.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// Three significant digits or more: "0.0512", "3.07", "812", "123457".
[[nodiscard]] std::string format_figure(double value);

}  // namespace perf

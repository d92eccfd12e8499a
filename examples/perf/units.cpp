// SPDX-License-Identifier: Apache-2.0
#include "units.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "protocol.hpp"

namespace perf {
namespace {

constexpr std::string_view suffixes = "KMG";
constexpr std::string_view all_sizes = "1-4M";

[[noreturn]] void refuse(std::string_view text) {
  throw std::invalid_argument(fmt::format("'{}' is not a size: write 64, 4K, 1M (at most {}), or a range such as 64-1M",
                                          text, format_size(most_bytes)));
}

void append_item(std::vector<std::uint32_t>& sizes, std::string_view item) {
  if (item == "all") item = all_sizes;
  const std::size_t dash = item.find('-');
  if (dash == std::string_view::npos) {
    sizes.push_back(parse_size(item));
    return;
  }
  const std::uint32_t first = parse_size(item.substr(0, dash));
  const std::uint32_t last = parse_size(item.substr(dash + 1));
  if (first > last) refuse(item);
  for (std::uint64_t size = first; size <= last; size *= 2) sizes.push_back(static_cast<std::uint32_t>(size));
}

}  // namespace

std::uint32_t parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, trouble] = std::from_chars(text.data(), end, value);
  if (trouble != std::errc() || value == 0 || value > most_bytes) refuse(text);
  if (rest != end) {
    const std::size_t unit = suffixes.find(*rest);
    if (unit == std::string_view::npos || rest + 1 != end) refuse(text);
    value <<= 10 * (unit + 1);
  }
  if (value > most_bytes) refuse(text);
  return static_cast<std::uint32_t>(value);
}

std::vector<std::uint32_t> parse_sizes(std::string_view text) {
  std::vector<std::uint32_t> sizes;
  while (true) {
    const std::size_t comma = text.find(',');
    append_item(sizes, text.substr(0, comma));
    if (comma == std::string_view::npos) return sizes;
    text.remove_prefix(comma + 1);
  }
}

std::string format_size(std::uint64_t bytes) {
  for (std::size_t unit = suffixes.size(); unit > 0; --unit) {
    const std::uint64_t one = std::uint64_t{1} << 10 * unit;
    if (bytes >= one && bytes % one == 0) return fmt::format("{}{}", bytes / one, suffixes[unit - 1]);
  }
  return fmt::format("{}", bytes);
}

std::string format_figure(double value) {
  if (value <= 0) return "0";
  const int digits_in_front = static_cast<int>(std::floor(std::log10(value))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - digits_in_front, 0, 6));
}

}  // namespace perf

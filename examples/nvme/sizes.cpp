// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <charconv>
#include <limits>

#include <nvme/sizes.hpp>

namespace nvme {
namespace {

constexpr std::string_view units = "KMGT";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw std::invalid_argument(fmt::format("'{}' is not a size: {}", text, why));
}

}  // namespace

std::string format_size(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (unit < units.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{} {}iB", bytes, units[unit - 1]);
}

std::uint64_t parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure == std::errc::result_out_of_range) refuse(text, "it does not fit in 64 bits");
  if (failure != std::errc()) refuse(text, "it does not begin with a number");
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.empty() || rest == "B") return value;
  const std::size_t unit = units.find(rest.front());
  rest.remove_prefix(1);
  if (unit == std::string_view::npos || !(rest.empty() || rest == "iB")) refuse(text, "the units are K, M, G and T");
  const unsigned shift = 10 * (static_cast<unsigned>(unit) + 1);
  if (value > std::numeric_limits<std::uint64_t>::max() >> shift) refuse(text, "it does not fit in 64 bits");
  return value << shift;
}

}  // namespace nvme

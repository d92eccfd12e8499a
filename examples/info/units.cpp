// SPDX-License-Identifier: Apache-2.0
#include "units.hpp"

#include <fmt/core.h>

#include <array>

namespace info {

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> names = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", value, names[unit]);
}

}  // namespace info

// SPDX-License-Identifier: Apache-2.0
#include "findings.hpp"

#include <algorithm>

namespace info {

const char* name_of(severity level) noexcept {
  switch (level) {
    case severity::ok:
      return "ok";
    case severity::hint:
      return "hint";
    case severity::warning:
      return "warning";
    case severity::error:
      break;
  }
  return "error";
}

std::size_t findings::count(severity level) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(all_.begin(), all_.end(), [&](const finding& each) { return each.level == level; }));
}

severity findings::worst() const noexcept {
  severity found = severity::ok;
  for (const finding& each : all_) found = std::max(found, each.level);
  return found;
}

}  // namespace info

// SPDX-License-Identifier: Apache-2.0
#include "findings.hpp"

#include <algorithm>
#include <array>

namespace info {

const char* name_of(severity level) noexcept {
  constexpr std::array names = {"ok", "hint", "warning", "error"};
  static_assert(names.size() == static_cast<std::size_t>(severity::error) + 1);
  return names[static_cast<std::size_t>(level)];
}

std::size_t findings::count(severity level) const noexcept {
  return static_cast<std::size_t>(std::ranges::count(all_, level, &finding::level));
}

severity findings::worst() const noexcept {
  return all_.empty() ? severity::ok : std::ranges::max_element(all_, {}, &finding::level)->level;
}

}  // namespace info

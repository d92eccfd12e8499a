// SPDX-License-Identifier: Apache-2.0
// What the tests of iWARP share.
#pragma once

#include <random>

#include "kit/test.hpp"

namespace weft::net::iwarp {

using bytes = std::vector<std::byte>;

inline bytes text(std::string_view letters) {
  bytes result(letters.size());
  std::ranges::transform(letters, result.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  return result;
}

}  // namespace weft::net::iwarp

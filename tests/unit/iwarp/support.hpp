// SPDX-License-Identifier: Apache-2.0
// What the tests of iWARP share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::net::iwarp {

using bytes = std::vector<std::byte>;

inline bytes text(std::string_view letters) {
  bytes result(letters.size());
  std::ranges::transform(letters, result.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  return result;
}

}  // namespace weft::net::iwarp

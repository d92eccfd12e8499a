// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nvme {

/// "64 MiB": in the largest unit that is exact.
[[nodiscard]] std::string format_size(std::uint64_t bytes);
/// "4096", "64K", "64M", "2G", "1T", with or without "iB", in powers of 1024. Throws std::invalid_argument, saying what
/// is wrong with it.
[[nodiscard]] std::uint64_t parse_size(std::string_view text);

/// For options: throws std::invalid_argument, with those words, for what does not hold.
inline void require(bool holds, const std::string& words) {
  if (!holds) throw std::invalid_argument(words);
}

}  // namespace nvme

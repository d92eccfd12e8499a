// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/words.hpp>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace weft::net::software {

words words::format(const char* pattern, ...) noexcept {
  words result;
  std::va_list arguments;
  va_start(arguments, pattern);
  const int wanted = std::vsnprintf(result.text_.data(), result.text_.size(), pattern, arguments);
  va_end(arguments);
  result.length_ = static_cast<std::uint8_t>(std::clamp(wanted, 0, static_cast<int>(result.text_.size()) - 1));
  return result;
}

words quoted(std::span<const std::byte> bytes, std::size_t limit) noexcept {
  std::array<char, 192> text;
  std::size_t used = 0;
  const std::size_t shown = std::min({bytes.size(), limit, text.size() / 4 - 1});
  for (const std::byte byte : bytes.first(shown)) {
    const int value = std::to_integer<int>(byte);
    const bool plain = value >= ' ' && value <= '~' && value != '"' && value != '\\';
    const int length = std::snprintf(text.data() + used, text.size() - used, plain ? "%c" : "\\x%02x", value);
    used += static_cast<std::size_t>(std::max(length, 0));
  }
  return words::format("\"%.*s%s\"", static_cast<int>(used), text.data(), bytes.size() > shown ? "..." : "");
}

}  // namespace weft::net::software

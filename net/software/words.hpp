// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weft::net::software {

/// A sentence that says what went wrong: at most 191 bytes, stored in place, so that reporting an error neither
/// allocates nor throws. A longer sentence is cut off.
class words {
 public:
  words() noexcept = default;

  /// Formats like printf(3).
  [[gnu::format(printf, 1, 2)]] static words format(const char* pattern, ...) noexcept;

  [[nodiscard]] std::string_view view() const noexcept { return {text_.data(), length_}; }
  [[nodiscard]] const char* c_str() const noexcept { return text_.data(); }
  [[nodiscard]] bool empty() const noexcept { return length_ == 0; }

 private:
  std::array<char, 192> text_{};
  std::uint8_t length_ = 0;
};

/// At most `limit` bytes, and at most 47, of what a peer sent, in quotes and with escapes: "GET / HT..."
[[nodiscard]] words quoted(std::span<const std::byte> bytes, std::size_t limit) noexcept;

}  // namespace weft::net::software

// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <common/printable.hpp>

namespace common {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// How many bytes the character has that begins here; 0 if it is none, or one that a terminal obeys.
std::size_t bytes_of_character(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  }
  const bool is_control = first == 0xc2 && byte_at(text, 1) < 0xa0;
  return is_control ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = bytes_of_character(text);
    clean += bytes == 0 ? "?" : text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return clean;
}

bool has_control(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    const unsigned char first = byte_at(text, 0);
    if (first < 0x20 || first == 0x7f) return true;
    if (first == 0xc2 && text.size() > 1 && byte_at(text, 1) < 0xa0) return true;
  }
  return false;
}

}  // namespace common

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/usage.hpp>

#include <fmt/core.h>

namespace weft::mr {

std::string to_string(usage value) {
  struct name {
    usage bit;
    const char* text;
  };
  static constexpr name names[] = {
      {usage::send, "send"},
      {usage::recv, "recv"},
      {usage::read_src, "read_src"},
      {usage::read_dst, "read_dst"},
      {usage::write_src, "write_src"},
      {usage::write_dst, "write_dst"},
      {usage::atomic_dst, "atomic_dst"},
      {usage::bind_window, "bind_window"},
      {usage::flush_visibility, "flush_visibility"},
      {usage::flush_persistent, "flush_persistent"},
  };
  std::string text;
  const auto append = [&text](const std::string& word) { text += text.empty() ? word : "|" + word; };
  for (const name& item : names) {
    if (includes(value, item.bit)) append(item.text);
  }
  if (const usage unknown = value & ~known_usages; unknown != usage::none) append(fmt::format("{:#x}", bits(unknown)));
  return text.empty() ? "none" : text;
}

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/porting.hpp>
#include <weft/mr/usage.hpp>
#include <weft/runtime/error.hpp>

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

void detail::throw_unknown_bits(const char* interface, std::uint64_t bits) {
  throw error(errc::unknown_usage, fmt::format("{} bits {:#x}", interface, bits));
}

void detail::throw_without_local_write() {
  throw error(errc::invalid_argument,
              "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE");
}

}  // namespace weft::mr

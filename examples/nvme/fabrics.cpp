// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nvme/fabrics.hpp>

namespace nvme {

std::string to_string(const identifier& what) {
  const auto is_dash = [](std::size_t place) { return place == 8 || place == 13 || place == 18 || place == 23; };
  std::string text;
  for (const std::byte each : what) {
    if (is_dash(text.size())) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned>(each));
  }
  return text;
}

controller_capabilities decode_capabilities(std::uint64_t property) noexcept {
  return {.max_queue_entries = static_cast<std::uint16_t>(property),
          .ready_timeout = static_cast<std::uint8_t>(property >> 24)};
}

std::uint64_t encode(const controller_capabilities& what) noexcept {
  constexpr std::uint64_t contiguous_queues = std::uint64_t{1} << 16;
  constexpr std::uint64_t nvm_command_set = std::uint64_t{1} << 37;
  return what.max_queue_entries | contiguous_queues | std::uint64_t{what.ready_timeout} << 24 | nvm_command_set;
}

discovery_header decode_discovery_header(std::span<const std::byte> bytes) {
  const auto found = decode<discovery_header>(bytes);
  if (found.format != 0) malformed(fmt::format("a discovery log page of format {}", found.format));
  return found;
}

}  // namespace nvme

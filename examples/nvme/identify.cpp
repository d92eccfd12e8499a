// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include <nvme/identify.hpp>

namespace nvme {
namespace {

// Offsets of Identify Namespace.
constexpr std::size_t capacity_at = 8;
constexpr std::size_t used_at = 16;
constexpr std::size_t format_at = 26;
constexpr std::size_t formats_at = 128;
constexpr std::size_t format_bytes = 4;

}  // namespace

namespace_identity decode_namespace(std::span<const std::byte> bytes) {
  auto found = decode<namespace_identity>(bytes);
  const std::size_t format = formats_at + format_bytes * (load<std::uint8_t>(bytes, format_at) & 0xf);
  found.metadata_bytes = load<std::uint16_t>(bytes, format);
  found.block_shift = load<std::uint8_t>(bytes, format + 2);
  const bool exists = found.blocks != 0;
  if (exists && (found.block_shift < 9 || found.block_shift > 20))
    malformed(fmt::format("a namespace with blocks of 2^{} bytes", found.block_shift));
  return found;
}

void encode(const namespace_identity& what, std::span<std::byte> into) {
  encode<namespace_identity>(what, into);
  store<std::uint64_t>(into, capacity_at, what.blocks);
  store<std::uint64_t>(into, used_at, what.blocks);
  store<std::uint16_t>(into, formats_at, what.metadata_bytes);
  store<std::uint8_t>(into, formats_at + 2, what.block_shift);
}

std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte> bytes) {
  if (bytes.size() < identify_bytes) malformed(fmt::format("a list of namespaces of {} bytes", bytes.size()));
  std::vector<std::uint32_t> found;
  for (std::size_t i = 0; i < most_listed; ++i) {
    const auto id = load<std::uint32_t>(bytes, i * sizeof(std::uint32_t));
    if (id == 0) break;
    if (!found.empty() && id <= found.back()) malformed("a list of namespaces whose ids do not grow");
    found.push_back(id);
  }
  return found;
}

void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte> into) {
  if (into.size() < identify_bytes) throw weft::error(weft::errc::out_of_range, "no room for a list of namespaces");
  std::ranges::fill(into.first(identify_bytes), std::byte{0});
  const std::size_t count = std::min(ids.size(), most_listed);
  for (std::size_t i = 0; i < count; ++i) store<std::uint32_t>(into, i * sizeof(std::uint32_t), ids[i]);
}

}  // namespace nvme

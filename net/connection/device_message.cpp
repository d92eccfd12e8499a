// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/device_message.hpp>
#include <weft/net/little_endian.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>

namespace weft::net {

std::size_t device_message::pack(std::span<std::byte> out) const noexcept {
  std::fill_n(out.begin(), head_bytes, std::byte{0});
  out[0] = static_cast<std::byte>(what);
  out[1] = std::byte{slot};
  out[2] = static_cast<std::byte>(status);
  out[3] = std::byte{flushes};
  little_endian::put(out, 4, bytes);
  little_endian::put(out, 8, key);
  little_endian::put(out, 16, offset);
  if (!region) return head_bytes;
  const auto packed = region->pack();
  std::copy(packed.begin(), packed.end(), out.subspan(head_bytes).begin());
  return head_bytes + packed.size();
}

std::optional<device_message> device_message::unpack(std::span<const std::byte> packed) noexcept try {
  if (packed.size() < head_bytes) return std::nullopt;
  device_message said;
  said.what = static_cast<verb>(packed[0]);
  said.slot = std::to_integer<std::uint8_t>(packed[1]);
  said.status = static_cast<mr::detail::device_access>(packed[2]);
  said.flushes = packed[3] == std::byte{1};
  said.bytes = little_endian::get<std::uint32_t>(packed, 4);
  said.key = little_endian::get<std::uint64_t>(packed, 8);
  said.offset = little_endian::get<std::uint64_t>(packed, 16);
  const bool is_known = said.what >= verb::ask && said.what <= verb::answer;
  const bool has_slot = said.slot < slots && said.bytes <= slot_bytes;
  if (!is_known || !has_slot || said.status > mr::detail::device_access::closing) return std::nullopt;
  const std::span<const std::byte> rest = packed.subspan(head_bytes);
  if (rest.empty()) return said;
  if (said.what != verb::memory) return std::nullopt;
  said.region = mr::remote_region::unpack(rest);
  const bool fits = said.region->size() == slots * slot_bytes && said.region->packed_bytes() == rest.size();
  return fits ? std::optional(said) : std::nullopt;
} catch (const error&) {
  return std::nullopt;
}

}  // namespace weft::net

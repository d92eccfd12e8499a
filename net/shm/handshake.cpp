// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/little_endian.hpp>
#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/handshake.hpp>

#include <algorithm>
#include <string_view>

namespace weft::net::shm {
namespace {

using little_endian::get;
using little_endian::put;

constexpr std::string_view magic = "weft-shm";
constexpr std::size_t version_end = 10;

bool is_ring(std::uint32_t bytes) noexcept {
  return (bytes & (bytes - 1)) == 0 && bytes >= channel::min_ring_bytes && bytes <= channel::max_ring_bytes;
}

bool has_parameters(frame_kind kind) noexcept { return kind == frame_kind::hello || kind == frame_kind::accept; }

bool is_sound(const frame& what) noexcept {
  if (what.kind < frame_kind::hello || what.kind > frame_kind::ready) return false;
  if (what.reason > reject_reason::unable) return false;
  if (what.kind != frame_kind::reject && what.reason != reject_reason::program) return false;
  if (what.kind == frame_kind::ready && what.private_bytes != 0) return false;
  if (has_parameters(what.kind)) return is_ring(what.ring_bytes);
  return what.incoming_reads == 0 && what.outgoing_reads == 0 && what.ring_bytes == 0;
}

}  // namespace

bool frame::set_private_data(std::span<const std::byte> data) noexcept {
  if (data.size() > max_private_bytes) return false;
  std::ranges::copy(data, private_memory.begin());
  private_bytes = static_cast<std::uint16_t>(data.size());
  return true;
}

std::size_t descriptors_of(frame_kind kind) noexcept { return kind == frame_kind::accept ? 1 : 0; }

std::size_t pack(const frame& what, std::span<std::byte, frame::max_bytes> out) noexcept {
  std::ranges::transform(magic, out.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  put(out, 8, what.version);
  put(out, 10, static_cast<std::uint8_t>(what.kind));
  put(out, 11, static_cast<std::uint8_t>(what.reason));
  put(out, 12, what.incoming_reads);
  put(out, 14, what.outgoing_reads);
  put(out, 16, what.ring_bytes);
  std::ranges::copy(what.private_data(), out.begin() + frame::header_bytes);
  return frame::header_bytes + what.private_bytes;
}

frame_status unpack(std::span<const std::byte> packet, frame& out) noexcept {
  const auto same = [](char letter, std::byte byte) { return static_cast<std::byte>(letter) == byte; };
  if (packet.size() < version_end) return frame_status::foreign;
  if (!std::equal(magic.begin(), magic.end(), packet.begin(), same)) return frame_status::foreign;
  frame found;
  found.version = get<std::uint16_t>(packet, 8);
  if (found.version != frame::spoken_version) {
    out = found;
    return frame_status::other_version;
  }
  if (packet.size() < frame::header_bytes || packet.size() > frame::max_bytes) return frame_status::malformed;
  found.kind = static_cast<frame_kind>(get<std::uint8_t>(packet, 10));
  found.reason = static_cast<reject_reason>(get<std::uint8_t>(packet, 11));
  found.incoming_reads = get<std::uint16_t>(packet, 12);
  found.outgoing_reads = get<std::uint16_t>(packet, 14);
  found.ring_bytes = get<std::uint32_t>(packet, 16);
  if (!found.set_private_data(packet.subspan(frame::header_bytes)) || !is_sound(found)) return frame_status::malformed;
  out = found;
  return frame_status::good;
}

}  // namespace weft::net::shm

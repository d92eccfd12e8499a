// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/hello.hpp>
#include <weft/net/link/little_endian.hpp>

#include <algorithm>

namespace weft::net::fabric {
namespace {

using little_endian::get;
using little_endian::put;

constexpr std::string_view magic = "weft-fab";

bool has_endpoint(frame_kind kind) noexcept { return kind == frame_kind::hello || kind == frame_kind::accept; }

bool is_sound(const frame& what) noexcept {
  if (what.kind < frame_kind::hello || what.kind > frame_kind::ready) return false;
  if (what.reason > reject_reason::other_provider) return false;
  if (what.kind != frame_kind::reject && what.reason != reject_reason::program) return false;
  if (what.kind == frame_kind::ready && what.private_bytes != 0) return false;
  const bool fits = what.address_bytes <= frame::max_address_bytes && what.name_bytes <= frame::max_name_bytes &&
                    what.private_bytes <= frame::max_private_bytes;
  if (!fits) return false;
  if (has_endpoint(what.kind)) return what.address_bytes != 0;
  return what.address_bytes == 0 && what.incoming_reads == 0 && what.outgoing_reads == 0 && what.token == 0;
}

}  // namespace

bool frame::set_address(std::span<const std::byte> address) noexcept {
  if (address.size() > max_address_bytes) return false;
  std::ranges::copy(address, address_memory.begin());
  address_bytes = static_cast<std::uint8_t>(address.size());
  return true;
}

bool frame::set_private_data(std::span<const std::byte> data) noexcept {
  if (data.size() > max_private_bytes) return false;
  std::ranges::copy(data, private_memory.begin());
  private_bytes = static_cast<std::uint8_t>(data.size());
  return true;
}

void frame::set_name(std::string_view name) noexcept {
  name = name.substr(0, max_name_bytes);
  std::ranges::copy(name, name_memory.begin());
  name_bytes = static_cast<std::uint8_t>(name.size());
}

std::size_t pack(const frame& what, std::span<std::byte, frame::max_bytes> out) noexcept {
  std::ranges::fill(out.first(frame::header_bytes), std::byte{0});
  std::ranges::transform(magic, out.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  put(out, 8, what.version);
  put(out, 10, static_cast<std::uint8_t>(what.kind));
  put(out, 11, static_cast<std::uint8_t>(what.reason));
  put(out, 12, what.address_bytes);
  put(out, 13, what.name_bytes);
  put(out, 14, what.private_bytes);
  put(out, 16, what.incoming_reads);
  put(out, 18, what.outgoing_reads);
  put(out, 24, what.token);
  auto end = out.begin() + frame::header_bytes;
  end = std::ranges::copy(what.address(), end).out;
  end = std::ranges::transform(what.name(), end, [](char letter) { return static_cast<std::byte>(letter); }).out;
  end = std::ranges::copy(what.private_data(), end).out;
  return static_cast<std::size_t>(end - out.begin());
}

bool may_be_ours(std::span<const std::byte> beginning) noexcept {
  const std::size_t known = std::min(beginning.size(), magic.size());
  const auto same = [](char letter, std::byte byte) { return static_cast<std::byte>(letter) == byte; };
  return std::equal(magic.begin(), magic.begin() + static_cast<std::ptrdiff_t>(known), beginning.begin(), same);
}

frame_status unpack(std::span<const std::byte, frame::header_bytes> header, frame& out) noexcept {
  if (!may_be_ours(header)) return frame_status::foreign;
  frame found;
  found.version = get<std::uint16_t>(header, 8);
  if (found.version != frame::spoken_version) {
    out = found;
    return frame_status::other_version;
  }
  found.kind = static_cast<frame_kind>(get<std::uint8_t>(header, 10));
  found.reason = static_cast<reject_reason>(get<std::uint8_t>(header, 11));
  found.address_bytes = get<std::uint8_t>(header, 12);
  found.name_bytes = get<std::uint8_t>(header, 13);
  found.private_bytes = get<std::uint8_t>(header, 14);
  found.incoming_reads = get<std::uint16_t>(header, 16);
  found.outgoing_reads = get<std::uint16_t>(header, 18);
  found.token = get<std::uint64_t>(header, 24);
  if (!is_sound(found)) return frame_status::malformed;
  out = found;
  return frame_status::good;
}

std::size_t rest_of(const frame& header) noexcept {
  return std::size_t{header.address_bytes} + header.name_bytes + header.private_bytes;
}

void unpack_rest(std::span<const std::byte> rest, frame& out) noexcept {
  const auto address = rest.first(out.address_bytes);
  const auto name = rest.subspan(out.address_bytes, out.name_bytes);
  const auto data = rest.subspan(std::size_t{out.address_bytes} + out.name_bytes, out.private_bytes);
  std::ranges::copy(address, out.address_memory.begin());
  std::ranges::transform(name, out.name_memory.begin(), [](std::byte byte) { return static_cast<char>(byte); });
  std::ranges::copy(data, out.private_memory.begin());
}

std::array<std::byte, control_record::bytes> pack(const control_record& what) noexcept {
  std::array<std::byte, control_record::bytes> out{};
  put(out, 0, what.kind);
  put(out, 1, what.reason);
  put(out, 4, what.messages);
  put(out, 8, what.key);
  put(out, 16, what.address);
  put(out, 24, what.length);
  return out;
}

control_record unpack(std::span<const std::byte, control_record::bytes> bytes) noexcept {
  return {.kind = get<std::uint8_t>(bytes, 0),
          .reason = get<std::uint8_t>(bytes, 1),
          .messages = get<std::uint32_t>(bytes, 4),
          .key = get<std::uint64_t>(bytes, 8),
          .address = get<std::uint64_t>(bytes, 16),
          .length = get<std::uint64_t>(bytes, 24)};
}

void pack(const message_trailer& what, std::span<std::byte, message_trailer::bytes> out) noexcept {
  std::ranges::fill(out, std::byte{0});
  put(out, 0, what.flags);
  put(out, 4, what.number);
  put(out, 8, what.key);
  put(out, 16, what.value);
  put(out, 24, what.token);
}

message_trailer unpack_trailer(std::span<const std::byte, message_trailer::bytes> bytes) noexcept {
  return {.flags = get<std::uint8_t>(bytes, 0),
          .number = get<std::uint32_t>(bytes, 4),
          .key = get<std::uint64_t>(bytes, 8),
          .value = get<std::uint32_t>(bytes, 16),
          .token = get<std::uint64_t>(bytes, 24)};
}

}  // namespace weft::net::fabric

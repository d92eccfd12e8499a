// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/wire.hpp>

#include <algorithm>
#include <string_view>

namespace weft::net::iwarp::mpa {
namespace {

constexpr std::string_view request_key = "MPA ID Req Frame";
constexpr std::string_view reply_key = "MPA ID Rep Frame";

// The flags in byte 16 of a frame.
constexpr unsigned markers_bit = 0x80;
constexpr unsigned crc_bit = 0x40;
constexpr unsigned rejected_bit = 0x20;
constexpr unsigned enhanced_bit = 0x10;

// The flags A and B are the two high bits of the IRD field; C and D are the two high bits of the ORD field.
constexpr unsigned high_flag = 0x8000;
constexpr unsigned low_flag = 0x4000;
constexpr unsigned depth_mask = 0x3FFF;

bool begins_like(std::span<const std::byte> bytes, std::string_view key) noexcept {
  const std::size_t known = std::min(bytes.size(), key.size());
  return std::equal(key.begin(), key.begin() + static_cast<std::ptrdiff_t>(known), bytes.begin(),
                    [](char wanted, std::byte got) { return static_cast<std::byte>(wanted) == got; });
}

parsed_frame malformed(const words& error) noexcept { return {.status = parse_status::malformed, .error = error}; }

parsed_frame incomplete(std::size_t needed) noexcept { return {.status = parse_status::incomplete, .bytes = needed}; }

parsed_frame wrong_key(std::span<const std::byte> bytes, frame_kind expected) noexcept {
  if (expected == frame_kind::reply && begins_like(bytes, request_key))
    return malformed(words::format("the peer sent an MPA request where a reply is due: both sides initiate"));
  if (expected == frame_kind::request && begins_like(bytes, reply_key))
    return malformed(words::format("the peer sent an MPA reply where a request is due"));
  return malformed(words::format("the peer does not speak iWARP: it sent %s", software::quoted(bytes, 8).c_str()));
}

enhanced_data parse_enhanced(std::span<const std::byte> bytes) noexcept {
  const unsigned inbound = load_be<std::uint16_t>(&bytes[0]);
  const unsigned outbound = load_be<std::uint16_t>(&bytes[2]);
  return {.ird = static_cast<std::uint16_t>(inbound & depth_mask),
          .ord = static_cast<std::uint16_t>(outbound & depth_mask),
          .peer_to_peer = (inbound & high_flag) != 0,
          .rtr_send = (inbound & low_flag) != 0,
          .rtr_write = (outbound & high_flag) != 0,
          .rtr_read = (outbound & low_flag) != 0};
}

void encode(const enhanced_data& data, std::byte* out) noexcept {
  store_be(out, static_cast<std::uint16_t>((data.ird & depth_mask) | (data.peer_to_peer ? high_flag : 0) |
                                           (data.rtr_send ? low_flag : 0)));
  store_be(out + 2, static_cast<std::uint16_t>((data.ord & depth_mask) | (data.rtr_write ? high_flag : 0) |
                                               (data.rtr_read ? low_flag : 0)));
}

}  // namespace

parsed_frame parse_frame(std::span<const std::byte> bytes, frame_kind expected) noexcept {
  if (!begins_like(bytes, expected == frame_kind::request ? request_key : reply_key)) return wrong_key(bytes, expected);

  // Each field is checked as soon as it has arrived, because a peer that sends an invalid one may never send more.
  if (bytes.size() <= 17) return incomplete(frame_header_bytes);
  const auto flags = std::to_integer<unsigned>(bytes[16]);
  const auto revision = std::to_integer<std::uint8_t>(bytes[17]);
  if (revision != 1 && revision != 2)
    return malformed(words::format("the peer speaks MPA revision %u, this side 1 and 2", unsigned{revision}));
  const bool is_enhanced = revision == 2 && (flags & enhanced_bit) != 0;

  if (bytes.size() < frame_header_bytes) return incomplete(frame_header_bytes);
  const std::size_t private_bytes = load_be<std::uint16_t>(&bytes[18]);
  if (private_bytes > max_private_bytes)
    return malformed(words::format("the peer announces %zu bytes of private data, %zu are allowed", private_bytes,
                                   max_private_bytes));
  if (is_enhanced && private_bytes < enhanced_bytes)
    return malformed(words::format("the peer's enhanced MPA frame has no room for IRD and ORD"));
  if (bytes.size() < frame_header_bytes + private_bytes) return incomplete(frame_header_bytes + private_bytes);

  parsed_frame result{.status = parse_status::complete, .bytes = frame_header_bytes + private_bytes};
  result.frame = {.kind = expected,
                  .markers = (flags & markers_bit) != 0,
                  .crc = (flags & crc_bit) != 0,
                  .rejected = expected == frame_kind::reply && (flags & rejected_bit) != 0,
                  .revision = revision,
                  .private_data = bytes.subspan(frame_header_bytes, private_bytes)};
  if (!is_enhanced) return result;
  result.frame.enhanced = parse_enhanced(result.frame.private_data);
  result.frame.private_data = result.frame.private_data.subspan(enhanced_bytes);
  return result;
}

std::size_t encode_frame(const frame& frame, std::span<std::byte> out) noexcept {
  const std::size_t ahead = frame.enhanced ? enhanced_bytes : 0;
  const std::size_t private_bytes = ahead + frame.private_data.size();
  if (private_bytes > max_private_bytes) return 0;

  const std::string_view key = frame.kind == frame_kind::request ? request_key : reply_key;
  std::ranges::transform(key, out.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  out[16] = static_cast<std::byte>((frame.markers ? markers_bit : 0) | (frame.crc ? crc_bit : 0) |
                                   (frame.rejected ? rejected_bit : 0) | (frame.enhanced ? enhanced_bit : 0));
  out[17] = std::byte{frame.revision};
  store_be(&out[18], static_cast<std::uint16_t>(private_bytes));
  if (frame.enhanced) encode(*frame.enhanced, &out[frame_header_bytes]);
  std::ranges::copy(frame.private_data, out.subspan(frame_header_bytes + ahead).begin());
  return frame_header_bytes + private_bytes;
}

std::size_t encode_fpdu(std::span<const std::byte> ulpdu, bool with_crc, std::span<std::byte> out) noexcept {
  const std::size_t bytes = fpdu_bytes(ulpdu.size());
  const std::size_t covered = bytes - crc_bytes;
  store_be(out.data(), static_cast<std::uint16_t>(ulpdu.size()));
  std::ranges::copy(ulpdu, out.subspan(length_bytes).begin());
  std::ranges::fill(out.first(covered).subspan(length_bytes + ulpdu.size()), std::byte{0});
  store_crc(&out[covered], with_crc ? crc32c_of(out.first(covered)) : 0);
  return bytes;
}

}  // namespace weft::net::iwarp::mpa

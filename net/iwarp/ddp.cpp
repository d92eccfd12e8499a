// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/wire.hpp>

namespace weft::net::iwarp {
namespace {

constexpr unsigned tagged_bit = 0x80;
constexpr unsigned last_bit = 0x40;

void encode_control(bool tagged, bool last, opcode op, std::byte* out) noexcept {
  out[0] = static_cast<std::byte>((tagged ? tagged_bit : 0) | (last ? last_bit : 0) | ddp_version);
  out[1] = static_cast<std::byte>(rdmap_version << 6 | static_cast<unsigned>(op));
}

}  // namespace

control parse_control(std::span<const std::byte, control_bytes> bytes) noexcept {
  const auto ddp = std::to_integer<unsigned>(bytes[0]);
  const auto rdmap = std::to_integer<unsigned>(bytes[1]);
  return {.tagged = (ddp & tagged_bit) != 0,
          .last = (ddp & last_bit) != 0,
          .ddp_version = static_cast<std::uint8_t>(ddp & 3),
          .rdmap_version = static_cast<std::uint8_t>(rdmap >> 6),
          .opcode = static_cast<iwarp::opcode>(rdmap & 0xF)};
}

tagged_header parse_tagged(std::span<const std::byte, tagged_header::bytes> bytes) noexcept {
  const control front = parse_control(bytes.first<control_bytes>());
  return {.last = front.last,
          .opcode = front.opcode,
          .stag = load_be<std::uint32_t>(&bytes[2]),
          .offset = load_be<std::uint64_t>(&bytes[6])};
}

untagged_header parse_untagged(std::span<const std::byte, untagged_header::bytes> bytes) noexcept {
  const control front = parse_control(bytes.first<control_bytes>());
  return {.last = front.last,
          .opcode = front.opcode,
          .invalidate_stag = load_be<std::uint32_t>(&bytes[2]),
          .queue = load_be<std::uint32_t>(&bytes[6]),
          .sequence = load_be<std::uint32_t>(&bytes[10]),
          .offset = load_be<std::uint32_t>(&bytes[14])};
}

void encode(const tagged_header& header, std::span<std::byte, tagged_header::bytes> out) noexcept {
  encode_control(true, header.last, header.opcode, out.data());
  store_be(&out[2], header.stag);
  store_be(&out[6], header.offset);
}

void encode(const untagged_header& header, std::span<std::byte, untagged_header::bytes> out) noexcept {
  encode_control(false, header.last, header.opcode, out.data());
  store_be(&out[2], header.invalidate_stag);
  store_be(&out[6], header.queue);
  store_be(&out[10], header.sequence);
  store_be(&out[14], header.offset);
}

}  // namespace weft::net::iwarp

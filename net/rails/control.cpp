// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/little_endian.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/rails/control.hpp>

namespace weft::net::rails {
namespace {

using little_endian::get;
using little_endian::put;

constexpr std::uint8_t first_kind = 0x80;

// The number of bytes in front of the trailer; empty for an unknown kind.
std::optional<std::size_t> body_bytes(control_kind kind) noexcept {
  switch (kind) {
    case control_kind::fenced:
    case control_kind::confirm:
    case control_kind::confirmed:
    case control_kind::revoke:
    case control_kind::withdrawn:
    case control_kind::refused:
      return 16;
    case control_kind::names:
      return 24;
    case control_kind::fence:
      return 8;
    case control_kind::exposed:
    case control_kind::listens:
      return 32;
    case control_kind::hello:
    case control_kind::welcome:
    case control_kind::credits:
    case control_kind::finish:
      return 0;
  }
  return std::nullopt;
}

}  // namespace

static_assert(control::max_bytes <= receive_bytes(0), "a receive of the connection's takes any control message");

std::span<const std::byte> control::pack(storage& out) const noexcept {
  out.fill(std::byte{0});
  const std::size_t body = body_bytes(kind).value_or(0);
  if (body >= 32) put(out, 24, address);
  if (body >= 24) put(out, 16, key);
  if (body >= 16) put(out, 8, number);
  if (body >= 8) {
    put(out, 0, rail);
    put(out, 1, static_cast<std::uint8_t>(carried_messages || at_deadline ? 1 : 0));
    put(out, 4, epoch);
  }
  put(out, body, static_cast<std::uint8_t>(kind));
  put(out, body + 4, received);
  return std::span(out).first(body + trailer_bytes);
}

bool control::is_one(std::span<const std::byte> message) noexcept {
  return message.size() >= trailer_bytes &&
         std::to_integer<std::uint8_t>(message[message.size() - trailer_bytes]) >= first_kind;
}

std::optional<control> control::unpack(std::span<const std::byte> message) noexcept {
  if (!is_one(message)) return std::nullopt;
  const std::size_t body = message.size() - trailer_bytes;
  control said;
  said.kind = static_cast<control_kind>(message[body]);
  if (body_bytes(said.kind) != body) return std::nullopt;
  said.received = get<std::uint32_t>(message, body + 4);
  if (message.size() >= 8 + trailer_bytes) {
    said.rail = get<std::uint8_t>(message, 0);
    const bool is_set = get<std::uint8_t>(message, 1) != 0;
    (said.kind == control_kind::withdrawn ? said.at_deadline : said.carried_messages) = is_set;
    said.epoch = get<std::uint32_t>(message, 4);
    if (said.rail >= max_rails) return std::nullopt;
  }
  if (message.size() >= 16 + trailer_bytes) said.number = get<std::uint64_t>(message, 8);
  if (message.size() >= 24 + trailer_bytes) said.key = get<std::uint64_t>(message, 16);
  if (message.size() >= 32 + trailer_bytes) said.address = get<std::uint64_t>(message, 24);
  return said;
}

}  // namespace weft::net::rails

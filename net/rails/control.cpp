// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/registration.hpp>
#include <weft/net/connection/native_protocol.hpp>
#include <weft/net/rails/control.hpp>

#include <algorithm>
#include <concepts>
#include <iterator>

namespace weft::net::rails {
namespace {

constexpr std::array<std::byte, 4> join_name{std::byte{'w'}, std::byte{'f'}, std::byte{'t'}, std::byte{'r'}};
constexpr std::byte join_version{1};
constexpr std::uint8_t first_kind = 0x80;

template <std::unsigned_integral Number>
void put(std::byte* where, Number value) noexcept {
  for (std::size_t i = 0; i < sizeof value; ++i) where[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral Number>
Number get(const std::byte* where) noexcept {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<Number>(value | static_cast<Number>(std::to_integer<Number>(where[i]) << (8 * i)));
  }
  return value;
}

// What stands in front of the trailer.
std::optional<std::size_t> body_bytes(control_kind kind) noexcept {
  switch (kind) {
    case control_kind::hello:
    case control_kind::fenced:
    case control_kind::confirm:
    case control_kind::names:
    case control_kind::confirmed:
      return 16;
    case control_kind::fence:
      return 8;
    case control_kind::exposed:
      return 32;
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
  switch (kind) {
    case control_kind::hello:
      std::copy(id.begin(), id.end(), out.begin());
      break;
    case control_kind::exposed:
      put(out.data() + 16, key);
      put(out.data() + 24, address);
      [[fallthrough]];
    case control_kind::fenced:
    case control_kind::confirm:
    case control_kind::names:
    case control_kind::confirmed:
      put(out.data() + 8, number);
      [[fallthrough]];
    case control_kind::fence:
      put(out.data(), rail);
      put(out.data() + 1, std::uint8_t{carried_messages});
      put(out.data() + 4, epoch);
      break;
    case control_kind::welcome:
    case control_kind::credits:
    case control_kind::finish:
      break;
  }
  put(out.data() + body, static_cast<std::uint8_t>(kind));
  put(out.data() + body + 4, received);
  return std::span(out).first(body + trailer_bytes);
}

bool control::is_one(std::span<const std::byte> message) noexcept {
  return message.size() >= trailer_bytes &&
         std::to_integer<std::uint8_t>(message[message.size() - trailer_bytes]) >= first_kind;
}

std::optional<control> control::unpack(std::span<const std::byte> message) noexcept {
  if (!is_one(message)) return std::nullopt;
  const std::byte* const trailer = message.data() + message.size() - trailer_bytes;
  control said;
  said.kind = static_cast<control_kind>(trailer[0]);
  if (body_bytes(said.kind) != message.size() - trailer_bytes) return std::nullopt;
  said.received = get<std::uint32_t>(trailer + 4);
  if (said.kind == control_kind::hello) {
    std::copy_n(message.begin(), said.id.size(), said.id.begin());
    return said;
  }
  if (message.size() >= 8 + trailer_bytes) {
    said.rail = get<std::uint8_t>(message.data());
    said.carried_messages = get<std::uint8_t>(message.data() + 1) != 0;
    said.epoch = get<std::uint32_t>(message.data() + 4);
    if (said.rail >= max_rails) return std::nullopt;
  }
  if (message.size() >= 16 + trailer_bytes) said.number = get<std::uint64_t>(message.data() + 8);
  if (said.kind == control_kind::exposed) {
    said.key = get<std::uint64_t>(message.data() + 16);
    said.address = get<std::uint64_t>(message.data() + 24);
  }
  return said;
}

std::array<std::byte, join::bytes> join::pack() const noexcept {
  std::array<std::byte, bytes> out{};
  std::copy(join_name.begin(), join_name.end(), out.begin());
  out[4] = join_version;
  put(out.data() + 5, rail);
  put(out.data() + 6, fabric);
  put(out.data() + 8, epoch);
  std::copy(id.begin(), id.end(), out.begin() + 12);
  return out;
}

std::optional<join> join::unpack(std::span<const std::byte> private_data) noexcept {
  if (private_data.size() < bytes || !std::equal(join_name.begin(), join_name.end(), private_data.begin())) {
    return std::nullopt;
  }
  if (private_data[4] != join_version) return std::nullopt;
  join said;
  said.rail = get<std::uint8_t>(private_data.data() + 5);
  said.fabric = get<std::uint8_t>(private_data.data() + 6);
  said.epoch = get<std::uint32_t>(private_data.data() + 8);
  std::copy_n(private_data.begin() + 12, said.id.size(), said.id.begin());
  if (said.rail >= max_rails || said.fabric >= mr::max_fabrics) return std::nullopt;
  return said;
}

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include <common/wire.hpp>

namespace perf {
namespace {

constexpr std::string_view name = "weft-perf";
constexpr std::string_view question = "how many";
constexpr std::uint8_t version = 1;

constexpr weft::mr::usage possible_access =
    weft::mr::usage::read_src | weft::mr::usage::write_dst | weft::mr::usage::atomic_dst;

constexpr std::string_view protocol = "weft-perf's protocol";

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

bool all_zero(std::span<const std::byte> bytes) noexcept {
  return std::ranges::all_of(bytes, [](std::byte value) { return value == std::byte{0}; });
}

}  // namespace

std::string_view name_of(checking how) noexcept {
  constexpr std::array<std::string_view, 4> names = {"usual", "off", "on", "late"};
  static_assert(names.size() == static_cast<std::size_t>(checking::late) + 1);
  return names[static_cast<std::size_t>(how)];
}

weft::net::iwarp_options options_of(checking how) noexcept {
  weft::net::iwarp_options options;
  if (how != checking::usual) options.checksum = how != checking::off;
  options.place_unchecked = how == checking::late;
  return options;
}

std::array<std::byte, order::packed_bytes> order::pack() const noexcept {
  std::array<std::byte, packed_bytes> packed{};
  common::writer to(packed);
  to.text(name);
  to.number(version);
  to.number(static_cast<std::uint8_t>(what));
  to.number(static_cast<std::uint8_t>(checksum));
  to.number(size);
  to.number(depth);
  to.number(weft::mr::bits(access));
  return packed;
}

order order::unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  if (bytes.size() != packed_bytes || from.text(name.size()) != name) from.malformed("the peer is not weft-perf");
  if (from.number<std::uint8_t>() != version) from.malformed("another version");
  const auto what = from.number<std::uint8_t>();
  if (what < 1 || what > 3) from.malformed("an unknown role");
  const auto checksum = from.number<std::uint8_t>();
  if (checksum > static_cast<std::uint8_t>(checking::late)) from.malformed("an unknown kind of checksum");
  order all;
  all.what = static_cast<role>(what);
  all.checksum = static_cast<checking>(checksum);
  all.size = from.number<std::uint32_t>();
  all.depth = from.number<std::uint16_t>();
  all.access = static_cast<weft::mr::usage>(from.number<std::uint16_t>());
  if (all.size == 0 || all.size > most_bytes) from.malformed("an impossible size");
  if (all.depth == 0 || all.depth > most_depth) from.malformed("an impossible depth");
  if (!weft::mr::includes(possible_access, all.access)) from.malformed("an unknown access");
  return all;
}

std::array<std::byte, hello::packed_bytes> hello::pack() const noexcept {
  std::array<std::byte, packed_bytes> packed{};
  common::writer to(packed);
  to.number(version);
  to.number(static_cast<std::uint8_t>(polling));
  to.bytes(std::array<std::byte, 6>{});
  if (memory) to.bytes(memory->pack());
  return packed;
}

hello hello::unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  if (bytes.size() != packed_bytes) from.malformed("no hello");
  if (from.number<std::uint8_t>() != version) from.malformed("another version");
  const auto polling = from.number<std::uint8_t>();
  if (polling > static_cast<std::uint8_t>(weft::poll_policy::sleep)) from.malformed("an unknown way to poll");
  if (!all_zero(from.bytes(6))) from.malformed("the reserved bytes of a hello are not zero");
  hello all;
  all.polling = static_cast<weft::poll_policy>(polling);
  const auto memory = from.bytes(weft::mr::remote_region::max_packed_bytes);
  if (!all_zero(memory)) all.memory = weft::mr::remote_region::unpack(memory);
  return all;
}

void mark::pack(std::span<std::byte> into) noexcept {
  std::ranges::fill(into, std::byte{0});
  std::ranges::copy(bytes_of(question), into.begin());
}

void mark::check(std::span<const std::byte> bytes) {
  const bool sized = bytes.size() == question.size() || bytes.size() == most_packed_bytes;
  if (!sized || !std::ranges::equal(bytes.first(question.size()), bytes_of(question)) ||
      !all_zero(bytes.subspan(question.size()))) {
    common::reader(bytes, protocol)
        .malformed(fmt::format("a message of {} bytes is not what was ordered", bytes.size()));
  }
}

std::array<std::byte, count::packed_bytes> count::pack() const noexcept {
  std::array<std::byte, packed_bytes> packed{};
  common::writer(packed).number(messages);
  return packed;
}

count count::unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  if (bytes.size() != packed_bytes) from.malformed("no count");
  return {.messages = from.number<std::uint64_t>()};
}

}  // namespace perf

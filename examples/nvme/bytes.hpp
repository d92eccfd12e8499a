// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

// NVMe's structures as tables of fields: little-endian numbers and padded texts, at offsets in bytes.
namespace nvme {

[[noreturn]] inline void malformed(const std::string& what) { throw weft::error(weft::errc::malformed, what); }

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

/// The number at `offset`. Throws errc::malformed rather than read beyond the bytes.
template <std::unsigned_integral Number>
[[nodiscard]] Number load(std::span<const std::byte> bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number)) malformed("an NVMe structure that is cut short");
  Number value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Stores `value` at `offset`. Throws errc::out_of_range rather than write beyond the bytes.
template <std::unsigned_integral Number>
void store(std::span<std::byte> bytes, std::size_t offset, std::type_identity_t<Number> value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number))
    throw weft::error(weft::errc::out_of_range, "an NVMe structure has no such field");
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

inline constexpr std::size_t longest_nqn = 223;
/// Whether it may be a qualified name: "nqn.", and at most longest_nqn printable characters.
[[nodiscard]] inline bool is_nqn(std::string_view name) noexcept {
  const auto is_printable = [](char each) { return each > ' ' && each <= '~'; };
  return name.size() <= longest_nqn && name.size() > 4 && name.starts_with("nqn.") &&
         std::ranges::all_of(name, is_printable);
}

// ---- fields at an offset ----

/// A member that is on the wire at `at`: a number, an enumeration, a text, bytes.
template <class Structure, class Member>
struct field {
  constexpr field(std::size_t offset, Member Structure::*which, std::size_t how = 0) noexcept
      : at(offset), member(which), detail(how) {}

  std::size_t at;
  Member Structure::*member;
  std::size_t detail;  ///< of a text, its width (0: a qualified name); of a number, the unit in which it is sent
};

/// A number that is the same in each structure of its kind, and that nobody reads.
template <std::unsigned_integral Number>
struct fixed {
  std::size_t at;
  Number value;
};

inline constexpr std::size_t nqn_bytes = 256;

// A name that a zero byte ends. Empty if what came is no qualified name.
inline void load_member(std::span<const std::byte> bytes, std::size_t at, std::size_t width, std::string& into) {
  const bool is_name = width == 0;
  const auto room = bytes.subspan(at, is_name ? nqn_bytes : width);
  const auto end = std::ranges::find(room, std::byte{0});
  into.assign(reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(end - room.begin()));
  if (is_name && (end == room.end() || !is_nqn(into))) into.clear();
  if (!is_name) into.resize(into.find_last_not_of(' ') + 1);
}
// Blanks fill a text up, which is cut if it is too long, and zero bytes a name, which has to fit.
inline void store_member(std::span<std::byte> bytes, std::size_t at, std::size_t width, std::string_view what) {
  const bool is_name = width == 0;
  const auto room = bytes.subspan(at, is_name ? nqn_bytes : width);
  if (is_name && what.size() >= nqn_bytes)
    throw weft::error(weft::errc::out_of_range, "a text is longer than its NVMe field");
  std::ranges::fill(room, is_name ? std::byte{0} : std::byte{' '});
  std::ranges::copy(std::as_bytes(std::span(what.substr(0, room.size()))), room.begin());
}

template <std::size_t Bytes>
void load_member(std::span<const std::byte> bytes, std::size_t at, std::size_t, std::array<std::byte, Bytes>& into) {
  std::ranges::copy(bytes.subspan(at, Bytes), into.begin());
}
template <std::size_t Bytes>
void store_member(std::span<std::byte> bytes, std::size_t at, std::size_t, const std::array<std::byte, Bytes>& what) {
  std::ranges::copy(what, bytes.subspan(at, Bytes).begin());
}

// A number in units that does not fit says nothing that anybody could use.
template <std::unsigned_integral Number>
void load_member(std::span<const std::byte> bytes, std::size_t at, std::size_t unit, Number& into) {
  const auto sent = load<Number>(bytes, at);
  const auto scale = static_cast<Number>(std::max<std::size_t>(unit, 1));
  into = static_cast<Number>(std::min<Number>(sent, std::numeric_limits<Number>::max() / scale) * scale);
}
template <std::unsigned_integral Number>
void store_member(std::span<std::byte> bytes, std::size_t at, std::size_t unit, Number what) {
  store<Number>(bytes, at, static_cast<Number>(what / std::max<std::size_t>(unit, 1)));
}

template <class Enumeration>
  requires std::is_enum_v<Enumeration>
void load_member(std::span<const std::byte> bytes, std::size_t at, std::size_t, Enumeration& into) {
  into = static_cast<Enumeration>(load<std::underlying_type_t<Enumeration>>(bytes, at));
}
template <class Enumeration>
  requires std::is_enum_v<Enumeration>
void store_member(std::span<std::byte> bytes, std::size_t at, std::size_t, Enumeration what) {
  store<std::underlying_type_t<Enumeration>>(bytes, at, static_cast<std::underlying_type_t<Enumeration>>(what));
}

template <class Structure, class Member>
void load_field(const field<Structure, Member>& which, std::span<const std::byte> from, Structure& into) {
  load_member(from, which.at, which.detail, into.*which.member);
}
template <class Structure, class Number>
void load_field(const fixed<Number>&, std::span<const std::byte>, Structure&) {}
template <class Structure, class Member>
void store_field(const field<Structure, Member>& which, const Structure& what, std::span<std::byte> into) {
  store_member(into, which.at, which.detail, what.*which.member);
}
template <class Structure, class Number>
void store_field(const fixed<Number>& which, const Structure&, std::span<std::byte> into) {
  store<Number>(into, which.at, which.value);
}

/// `bytes` are its size, `name` is for errors, and `layout()` yields its fields.
template <class Structure>
concept wire_structure = requires {
  { Structure::bytes } -> std::convertible_to<std::size_t>;
  { Structure::name } -> std::convertible_to<std::string_view>;
  Structure::layout();
};

/// Empty for less than Structure::bytes.
template <wire_structure Structure>
[[nodiscard]] std::optional<Structure> try_decode(std::span<const std::byte> bytes) {
  if (bytes.size() < Structure::bytes) return std::nullopt;
  Structure found;
  std::apply([&](const auto&... each) { (load_field(each, bytes, found), ...); }, Structure::layout());
  return found;
}

/// Throws errc::malformed for less than Structure::bytes.
template <wire_structure Structure>
[[nodiscard]] Structure decode(std::span<const std::byte> bytes) {
  auto found = try_decode<Structure>(bytes);
  if (!found) malformed(fmt::format("{} of {} bytes", Structure::name, bytes.size()));
  return *std::move(found);
}

/// Fills what has no field with zeroes. Throws errc::out_of_range if there is no room.
template <wire_structure Structure>
void encode(const Structure& what, std::span<std::byte> into) {
  if (into.size() < Structure::bytes) throw weft::error(weft::errc::out_of_range, "no room for an NVMe structure");
  const auto room = into.first(Structure::bytes);
  std::ranges::fill(room, std::byte{0});
  std::apply([&](const auto&... each) { (store_field(each, what, room), ...); }, Structure::layout());
}

template <wire_structure Structure>
[[nodiscard]] std::array<std::byte, Structure::bytes> encoded(const Structure& what) {
  std::array<std::byte, Structure::bytes> made;
  encode(what, made);
  return made;
}

}  // namespace nvme

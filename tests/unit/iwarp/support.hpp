// SPDX-License-Identifier: Apache-2.0
// What the tests of iWARP share.
#pragma once

#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>

#include <random>

#include "kit/test.hpp"

namespace weft::net::iwarp {

using bytes = std::vector<std::byte>;

inline bytes text(std::string_view letters) {
  bytes result(letters.size());
  std::ranges::transform(letters, result.begin(), [](char letter) { return static_cast<std::byte>(letter); });
  return result;
}

/// A header or a body on the wire.
template <class What>
bytes encoded(const What& what) {
  bytes result(What::bytes);
  encode(what, std::span(result).template first<What::bytes>());
  return result;
}
/// A set-up frame on the wire.
inline bytes encoded(const mpa::frame& frame) {
  bytes result(mpa::max_frame_bytes);
  result.resize(mpa::encode_frame(frame, result));
  return result;
}
/// The set-up frame that these bytes are.
inline mpa::frame parsed(const bytes& wire, mpa::frame_kind kind) {
  const mpa::parsed_frame result = mpa::parse_frame(wire, kind);
  EXPECT_EQ(result.status, mpa::parse_status::complete);
  EXPECT_EQ(result.bytes, wire.size());
  return result.frame;
}

/// The ULPDU of the FPDU at the front.
inline std::span<const std::byte> first_ulpdu(std::span<const std::byte> wire) {
  const auto length = std::to_integer<std::size_t>(wire[0]) << 8 | std::to_integer<std::size_t>(wire[1]);
  return wire.subspan(mpa::length_bytes, length);
}
inline control control_of(std::span<const std::byte> ulpdu) { return parse_control(ulpdu.first<control_bytes>()); }

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/native_features.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::net::rails {

/// The most rails of one connection.
inline constexpr std::size_t max_rails = 4;

/// Identifies the connection of a rail. The accepting end draws the id at random, and sends it to the connection's peer
/// alone, behind the private data with which it accepts the first rail. Any peer that knows the id may add a rail.
using connection_id = std::array<std::byte, 16>;

/// The private data with which a rail joins a connection:
///
///   0  4  "wftr"
///   4  1  version, 1
///   5  1  rail: 1 to max_rails - 1, or 0 to replace the first rail after its loss
///   6  1  the sender's fabric, 0 to 3
///   7  1  zero
///   8  4  epoch: greater than that of this rail's previous link and of every earlier attempt at it
///  12 16  id; zero in the answer
///  28  4  key of the sender's landing_place on this rail; zero: there is none
///  32  8  address of the landing_place
struct join {
  static constexpr std::size_t bytes = 40;

  std::uint8_t rail = 0;
  std::uint8_t fabric = 0;
  std::uint32_t epoch = 0;
  connection_id id{};
  landing_place landing{};

  [[nodiscard]] std::array<std::byte, bytes> pack() const noexcept;
  /// Reads a join. Empty if the private data is no join, has another version, or names a rail or fabric out of range.
  /// Zeros may follow the join: connection managers of devices pad private data.
  [[nodiscard]] static std::optional<join> unpack(std::span<const std::byte> private_data) noexcept;
};

}  // namespace weft::net::rails

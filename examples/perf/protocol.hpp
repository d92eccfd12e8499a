// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/executor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <common/printable.hpp>

// What the two sides of a measurement say to each other. Each test has connections of its own, so that their sizes fit
// it, and the client's order is the private data with which it connects:
//
//   order      client -> server   what the server is to do with messages, and which memory it is to open
//   hello      server -> client   how the server polls, and the memory; its first message
//
// and then any number of rounds, until the client closes:
//
//   messages of exactly the ordered size, which the server echoes or takes, and one-sided operations on the memory
//   mark       client -> server   a message of any other size: how many were there?
//   count      server -> client   so many messages since the last mark. Everything before the mark has arrived, since
//                                 operations keep their order (RFC 5041 section 5.3)
//
// All numbers are little-endian.
namespace perf {

inline constexpr std::uint32_t most_bytes = std::uint32_t{1} << 30;
inline constexpr std::uint16_t most_depth = 8192;

/// What the server does with messages of the ordered size.
enum class role : std::uint8_t {
  echo = 1,  ///< sends each back
  take = 2,  ///< counts them
  wait = 3,  ///< there are none: the client works on the server's memory
};

/// Whether iWARP in user space protects what it carries by a checksum: where either side wants it.
enum class checking : std::uint8_t {
  usual = 0,  ///< as the library likes it
  off = 1,
  on = 2,
  late = 3,  ///< on, but data is placed before it is checked: weft::net::iwarp_options::place_unchecked.
             ///< Both sides have to be
};

[[nodiscard]] std::string_view name_of(checking how) noexcept;
/// For the device of a side.
[[nodiscard]] weft::net::iwarp_options options_of(checking how) noexcept;

/// 9 bytes "weft-perf", 1 version, 1 role, 1 checking, 4 size, 2 depth,
/// 2 usage (the bits of weft::mr::usage).
struct order {
  static constexpr std::size_t packed_bytes = 20;

  role what = role::wait;
  checking checksum = checking::usual;
  std::uint32_t size = 0;   ///< of each operation
  std::uint16_t depth = 1;  ///< operations in flight
  weft::mr::usage access = weft::mr::usage::none;

  [[nodiscard]] std::array<std::byte, packed_bytes> pack() const noexcept;
  /// Throws weft::errc::malformed, saying what is wrong with it.
  [[nodiscard]] static order unpack(std::span<const std::byte> bytes);
};

/// 1 version, 1 polling, 6 zeros, then the memory, or zeros.
struct hello {
  static constexpr std::size_t packed_bytes = 8 + weft::mr::remote_region::max_packed_bytes;

  weft::poll_policy polling = weft::poll_policy::adaptive;
  std::optional<weft::mr::remote_region> memory;

  [[nodiscard]] std::array<std::byte, packed_bytes> pack() const noexcept;
  [[nodiscard]] static hello unpack(std::span<const std::byte> bytes);
};

/// 8 bytes "how many", and one more where the messages are of that size.
struct mark {
  static constexpr std::size_t most_packed_bytes = 9;

  [[nodiscard]] static std::size_t bytes_beside(std::uint32_t message_size) noexcept {
    return message_size == most_packed_bytes - 1 ? most_packed_bytes : most_packed_bytes - 1;
  }
  static void pack(std::span<std::byte> into) noexcept;
  /// Throws weft::errc::malformed if it is none.
  static void check(std::span<const std::byte> bytes);
};

/// 8 bytes.
struct count {
  static constexpr std::size_t packed_bytes = 8;

  std::uint64_t messages = 0;

  [[nodiscard]] std::array<std::byte, packed_bytes> pack() const noexcept;
  [[nodiscard]] static count unpack(std::span<const std::byte> bytes);
};

/// The largest message that is no message of the test.
inline constexpr std::uint32_t control_bytes = 256;
static_assert(hello::packed_bytes <= control_bytes && mark::most_packed_bytes <= control_bytes);

using common::printable;

}  // namespace perf

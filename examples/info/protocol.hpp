// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What `weft-info check PEER` and `weft-info serve` say to each other. The client's first word is the private data of
// its set-up, greeting(), and so is the server's. The server then sends its introduction, and answers requests, each in
// one message, until the client closes.
namespace info {

/// The largest message of either side, in bytes.
inline constexpr std::uint32_t most_message_bytes = 32 * 1024;
/// Messages that may be on the way.
inline constexpr std::uint16_t messages_at_a_time = 4;
/// Of the memory that the server opens for writes, reads and, where the device has them, atomic operations.
inline constexpr std::uint32_t memory_bytes = 256 * 1024;
/// The most that a client may have the server write into memory that the client exposes.
inline constexpr std::uint32_t most_exposed_bytes = 64 * 1024;

/// What both sides say when they connect.
[[nodiscard]] std::span<const std::byte> greeting() noexcept;
/// Whether what a peer has said is that. A transport may pad it with zeros.
[[nodiscard]] bool is_greeting(std::span<const std::byte> said) noexcept;

/// The server's first message.
struct introduction {
  std::uint64_t token = 0;  ///< opens the server's UDP port to this client's packets: see packets.hpp
  bool answers_packets = false;
  weft::mr::remote_region memory{{}, 0, memory_bytes, weft::mr::usage::none};
  std::string words{};  ///< for a person, at most most_words bytes

  static constexpr std::size_t most_words = 200;

  [[nodiscard]] std::vector<std::byte> pack() const;
  /// Throws weft::errc::malformed. The words are printable.
  [[nodiscard]] static introduction unpack(std::span<const std::byte> bytes);
};

enum class request_kind : std::uint8_t {
  echo = 1,   ///< send it back as it is
  check = 2,  ///< does the memory hold the pattern of that seed?
  fill = 3,   ///< put the pattern of that seed into the memory
  write = 4,  ///< write the pattern of that seed over the client's memory, whose descriptor stands behind the request
};

/// What the client asks; the answer to all but echo has the same form. An echo may be of any length from 1 on.
struct request {
  request_kind what = request_kind::echo;
  std::uint64_t number = 0;  ///< the seed, or in the answer to check the first byte that differs, or all_right

  static constexpr std::uint64_t all_right = UINT64_MAX;
  static constexpr std::size_t packed_bytes = 9;

  [[nodiscard]] std::array<std::byte, packed_bytes> pack() const noexcept;
  /// Throws weft::errc::malformed. Leaves what stands behind a request to write.
  [[nodiscard]] static request unpack(std::span<const std::byte> bytes);
};

/// Bytes that differ from those of other seeds and places.
void fill_with_pattern(std::span<std::byte> memory, std::uint64_t seed) noexcept;
/// The first byte that is not the pattern's; empty if all are.
[[nodiscard]] std::optional<std::size_t> find_difference(std::span<const std::byte> memory,
                                                         std::uint64_t seed) noexcept;

}  // namespace info

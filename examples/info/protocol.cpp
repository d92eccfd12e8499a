// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include <text/printable.hpp>

namespace info {
namespace {

constexpr std::string_view first_words = "weft-info 1";
constexpr std::size_t introduction_bytes = 10;  // of an introduction

[[noreturn]] void malformed(std::string_view what) {
  throw weft::error(weft::errc::malformed, fmt::format("weft-info's protocol: {}", what));
}

void put(std::uint64_t value, std::span<std::byte, 8> into) noexcept {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<std::byte>(value >> 8 * i & 0xff);
}

std::uint64_t get(std::span<const std::byte, 8> from) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = from.size(); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(from[i]);
  return value;
}

// The eight bytes of a place: splitmix64 of seed and place.
std::uint64_t word_at(std::uint64_t seed, std::size_t place) noexcept {
  std::uint64_t value = seed + (place + 1) * 0x9E3779B97F4A7C15;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

std::byte byte_at(std::uint64_t word, std::size_t place) noexcept {
  return static_cast<std::byte>(word >> 8 * (place % 8) & 0xff);
}

}  // namespace

std::span<const std::byte> greeting() noexcept { return std::as_bytes(std::span(first_words)); }

bool is_greeting(std::span<const std::byte> said) noexcept {
  return said.size() >= greeting().size() && std::ranges::equal(said.first(greeting().size()), greeting()) &&
         std::ranges::all_of(said.subspan(greeting().size()), [](std::byte each) { return each == std::byte{0}; });
}

// Token (8 bytes), whether packets are answered (1), bytes of words (1), words, memory to the end.
std::vector<std::byte> introduction::pack() const {
  const auto region = memory.pack();
  const auto text = std::as_bytes(std::span(words)).first(std::min(words.size(), most_words));
  std::vector<std::byte> packed(introduction_bytes + text.size() + region.size());
  const std::span<std::byte> rest(packed);
  put(token, rest.first<8>());
  packed[8] = std::byte{answers_packets};
  packed[9] = static_cast<std::byte>(text.size());
  std::ranges::copy(text, rest.subspan(introduction_bytes).begin());
  std::ranges::copy(region, rest.subspan(introduction_bytes + text.size()).begin());
  return packed;
}

introduction introduction::unpack(std::span<const std::byte> bytes) {
  if (bytes.size() < introduction_bytes) malformed("the introduction is cut short");
  introduction all;
  all.token = get(bytes.first<8>());
  if (std::to_integer<unsigned>(bytes[8]) > 1) malformed("neither yes nor no");
  all.answers_packets = bytes[8] == std::byte{1};
  const auto length = std::to_integer<std::size_t>(bytes[9]);
  bytes = bytes.subspan(introduction_bytes);
  if (length > most_words || length > bytes.size()) malformed("more words than there can be");
  all.words = text::printable({reinterpret_cast<const char*>(bytes.data()), length});
  bytes = bytes.subspan(length);
  all.memory = weft::mr::remote_region::unpack(bytes);
  constexpr auto needed = weft::mr::usage::write_dst | weft::mr::usage::read_src;
  if (all.memory.packed_bytes() != bytes.size()) malformed("more than an introduction");
  if (all.memory.size() != memory_bytes || !all.memory.allows(needed)) malformed("memory of another kind");
  return all;
}

std::array<std::byte, request::packed_bytes> request::pack() const noexcept {
  std::array<std::byte, packed_bytes> packed{static_cast<std::byte>(what)};
  put(number, std::span(packed).last<8>());
  return packed;
}

request request::unpack(std::span<const std::byte> bytes) {
  if (bytes.empty()) malformed("a request of no bytes");
  const auto kind = std::to_integer<std::uint8_t>(bytes.front());
  if (kind < static_cast<std::uint8_t>(request_kind::echo) || kind > static_cast<std::uint8_t>(request_kind::fill)) {
    malformed("an unknown request");
  }
  request all{.what = static_cast<request_kind>(kind)};
  if (all.what == request_kind::echo) return all;
  if (bytes.size() != packed_bytes) malformed("a request of another length");
  all.number = get(bytes.last<8>());
  return all;
}

void fill_with_pattern(std::span<std::byte> memory, std::uint64_t seed) noexcept {
  for (std::size_t begin = 0; begin < memory.size(); begin += 8) {
    const std::uint64_t word = word_at(seed, begin / 8);
    const std::size_t end = std::min(begin + 8, memory.size());
    for (std::size_t i = begin; i < end; ++i) memory[i] = byte_at(word, i);
  }
}

std::optional<std::size_t> find_difference(std::span<const std::byte> memory, std::uint64_t seed) noexcept {
  for (std::size_t begin = 0; begin < memory.size(); begin += 8) {
    const std::uint64_t word = word_at(seed, begin / 8);
    const std::size_t end = std::min(begin + 8, memory.size());
    for (std::size_t i = begin; i < end; ++i) {
      if (memory[i] != byte_at(word, i)) return i;
    }
  }
  return std::nullopt;
}

}  // namespace info

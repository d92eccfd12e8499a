// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <algorithm>
#include <string_view>

#include <common/printable.hpp>
#include <common/wire.hpp>

namespace info {
namespace {

constexpr std::string_view first_words = "weft-info 1";
constexpr std::size_t introduction_bytes = 10;  // of an introduction

constexpr std::string_view protocol = "weft-info's protocol";

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
  const std::string_view text = std::string_view(words).substr(0, most_words);
  std::vector<std::byte> packed(introduction_bytes + text.size() + region.size());
  common::writer to(packed);
  to.number(token);
  to.number(std::uint8_t{answers_packets});
  to.number(static_cast<std::uint8_t>(text.size()));
  to.text(text);
  to.bytes(region);
  return packed;
}

introduction introduction::unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  if (bytes.size() < introduction_bytes) from.malformed("the introduction is cut short");
  introduction all;
  all.token = from.number<std::uint64_t>();
  const auto answers = from.number<std::uint8_t>();
  if (answers > 1) from.malformed("neither yes nor no");
  all.answers_packets = answers == 1;
  const auto length = from.number<std::uint8_t>();
  if (length > most_words || length > from.left()) from.malformed("more words than there can be");
  all.words = common::printable(from.text(length));
  all.memory = from.region();
  constexpr auto needed = weft::mr::usage::write_dst | weft::mr::usage::read_src;
  if (from.left() != 0) from.malformed("more than an introduction");
  if (all.memory.size() != memory_bytes || !all.memory.allows(needed)) from.malformed("memory of another kind");
  return all;
}

std::array<std::byte, request::packed_bytes> request::pack() const noexcept {
  std::array<std::byte, packed_bytes> packed{};
  common::writer to(packed);
  to.number(static_cast<std::uint8_t>(what));
  to.number(number);
  return packed;
}

request request::unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  if (bytes.empty()) from.malformed("a request of no bytes");
  const auto kind = from.number<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(request_kind::echo) || kind > static_cast<std::uint8_t>(request_kind::write)) {
    from.malformed("an unknown request");
  }
  request all{.what = static_cast<request_kind>(kind)};
  if (all.what == request_kind::echo) return all;
  const bool has_more = all.what == request_kind::write && bytes.size() > packed_bytes;
  if (bytes.size() != packed_bytes && !has_more) from.malformed("a request of another length");
  all.number = from.number<std::uint64_t>();
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

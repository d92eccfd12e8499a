// SPDX-License-Identifier: Apache-2.0
#include "contents.hpp"

#include <algorithm>
#include <cstring>

namespace kvcache {
namespace {

// The finalizer of splitmix64: numbers that differ in one bit have nothing in common behind it.
constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

std::uint64_t first_word(const block_name& name) noexcept {
  return mix(mix(name.sequence) ^ (std::uint64_t{name.layer} << 32 | name.page));
}

constexpr std::uint64_t step = 0x9e3779b97f4a7c15;  // odd, so that no word of a block comes twice

bool is_right(const std::byte* at, std::size_t words, std::uint64_t word) noexcept {
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i != words; ++i, word += step) {
    std::uint64_t found;
    std::memcpy(&found, at + i * word_bytes, word_bytes);
    difference |= found ^ word;
  }
  return difference == 0;
}

}  // namespace

void fill_block(std::span<std::byte> block, const block_name& name) noexcept {
  std::uint64_t word = first_word(name);
  for (std::size_t at = 0; at != block.size(); at += word_bytes, word += step) {
    std::memcpy(block.data() + at, &word, word_bytes);
  }
}

std::optional<std::size_t> first_wrong(std::span<const std::byte> block, const block_name& name) noexcept {
  constexpr std::size_t piece = 512;  // words: a loop without a way out is one of vectors
  const std::size_t words = block.size() / word_bytes;
  const std::uint64_t first = first_word(name);
  for (std::size_t at = 0; at < words; at += piece) {
    const std::byte* const here = block.data() + at * word_bytes;
    const std::size_t count = std::min(piece, words - at);
    if (is_right(here, count, first + at * step)) continue;
    for (std::size_t i = 0; i != count; ++i) {
      if (!is_right(here + i * word_bytes, 1, first + (at + i) * step)) return (at + i) * word_bytes;
    }
  }
  return std::nullopt;
}

}  // namespace kvcache

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace weft::sim {

/// Everything random in a simulation: a sequence that its seed decides, on every machine. This is SplitMix64; the
/// distributions of the standard library differ from one library to the next.
class random {
 public:
  explicit random(std::uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] std::uint64_t next() noexcept {
    std::uint64_t mixed = state_ += 0x9E3779B97F4A7C15;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    return mixed ^ (mixed >> 31);
  }
  /// From 0 to `bound`, exclusive; 0 if there is nothing to choose.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept { return bound == 0 ? 0 : next() % bound; }
  /// From `low` to `high`, inclusive.
  [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept {
    return low + below(high - low + 1);
  }
  [[nodiscard]] bool one_in(std::uint64_t count) noexcept { return below(count) == 0; }
  [[nodiscard]] bool per_mille(std::uint64_t share) noexcept { return below(1000) < share; }
  /// Small numbers often, large ones seldom: of a random number of bits, up to `high`.
  [[nodiscard]] std::uint64_t skewed(std::uint64_t high) noexcept {
    unsigned bits = 0;
    while (bits < 63 && (high >> bits) != 0) ++bits;
    const std::uint64_t limit = std::uint64_t{1} << below(bits + 1U);
    const std::uint64_t drawn = below(limit);
    return drawn < high ? drawn : high;
  }

 private:
  std::uint64_t state_;
};

/// What a run has done, in one number: two runs with the same are the same.
class fingerprint {
 public:
  void add(std::uint64_t word) noexcept { value_ = (value_ ^ word) * 0x9DDFEA08EB382D69 + (value_ >> 47); }
  void add(std::span<const std::byte> bytes) noexcept {
    add(bytes.size());
    while (!bytes.empty()) {
      std::uint64_t word = 0;
      const std::size_t count = bytes.size() < sizeof word ? bytes.size() : sizeof word;
      std::memcpy(&word, bytes.data(), count);
      add(word);
      bytes = bytes.subspan(count);
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0x243F6A8885A308D3;
};

}  // namespace weft::sim

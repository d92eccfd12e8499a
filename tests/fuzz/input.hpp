// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace weft::fuzz {

/// A fuzzer's bytes, taken off the front as numbers and runs; zeros once they are used up.
class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  [[nodiscard]] std::size_t size() const { return rest_.size(); }

  std::uint8_t byte() {
    const auto front = run(1);
    return front.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(front[0]);
  }
  std::uint32_t word() {
    std::uint32_t result = 0;
    for (const std::byte value : run(4)) result = result << 8 | std::to_integer<std::uint32_t>(value);
    return result;
  }
  /// A number below `limit`.
  std::size_t below(std::size_t limit) {
    const std::size_t high = byte();
    return (high << 8 | byte()) % limit;
  }
  /// At most `size` bytes.
  std::span<const std::byte> run(std::size_t size) {
    const auto front = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(front.size());
    return front;
  }

 private:
  std::span<const std::byte> rest_;
};

/// What must hold for every input.
inline void require(bool condition, const char* promise) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

}  // namespace weft::fuzz

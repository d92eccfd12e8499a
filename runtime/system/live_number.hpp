// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::detail {

/// A number that one thread changes and any thread reads, without a locked instruction: it is atomic only so that
/// nobody reads half of a value.
class live_number {
 public:
  void add(std::uint64_t more) noexcept { set(get() + more); }
  void subtract(std::uint64_t less) noexcept { set(get() - less); }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace weft::detail

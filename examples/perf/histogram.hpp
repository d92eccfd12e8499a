// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <cstdint>
#include <memory>

namespace perf {

/// How long operations took: counts in bins that are half a percent wide, from a nanosecond to 1000 seconds.
class histogram {
 public:
  histogram();
  histogram(histogram&&) noexcept;
  histogram& operator=(histogram&&) noexcept;
  ~histogram();

  void record(weft::duration time);

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Nanoseconds; 0 as long as nothing is recorded. These two are exact.
  [[nodiscard]] double min() const noexcept { return count_ != 0 ? min_ : 0; }
  [[nodiscard]] double max() const noexcept { return max_; }
  /// Nanoseconds that `percent` of the operations took at most.
  [[nodiscard]] double percentile(double percent) const;

 private:
  struct bins;
  std::unique_ptr<bins> bins_;
  std::uint64_t count_ = 0;
  double min_ = 0;
  double max_ = 0;
};

}  // namespace perf

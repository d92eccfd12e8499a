// SPDX-License-Identifier: Apache-2.0
#include "histogram.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>

#include <boost/histogram/axis/regular.hpp>
#include <boost/histogram/histogram.hpp>
#include <boost/histogram/indexed.hpp>
#include <boost/histogram/make_histogram.hpp>
#include <boost/histogram/storage_adaptor.hpp>

namespace perf {
namespace {

namespace bh = boost::histogram;

using frequency_axis = bh::axis::regular<double, bh::axis::transform::log>;

constexpr double first_ns = 1;
constexpr double last_ns = 1e12;
constexpr double bin_width = 1.005;

frequency_axis make_axis() {
  return frequency_axis(static_cast<unsigned>(std::ceil(std::log(last_ns / first_ns) / std::log(bin_width))), first_ns,
                        last_ns);
}

}  // namespace

struct histogram::bins {
  bh::histogram<std::tuple<frequency_axis>, bh::dense_storage<std::uint64_t>> counts{make_axis()};
};

histogram::histogram() : bins_(std::make_unique<bins>()) {}
histogram::histogram(histogram&&) noexcept = default;
histogram& histogram::operator=(histogram&&) noexcept = default;
histogram::~histogram() = default;

void histogram::record(weft::duration time) {
  const auto nanoseconds = static_cast<double>(std::chrono::nanoseconds(time).count());
  min_ = count_ == 0 ? nanoseconds : std::min(min_, nanoseconds);
  max_ = std::max(max_, nanoseconds);
  ++count_;
  bins_->counts(nanoseconds);
}

double histogram::percentile(double percent) const {
  const double wanted = std::ceil(static_cast<double>(count_) * percent / 100);
  double below = 0;
  for (const auto& bin : bh::indexed(bins_->counts)) {
    below += static_cast<double>(*bin);
    if (*bin != 0 && below >= wanted) return std::clamp(std::sqrt(bin.bin().lower() * bin.bin().upper()), min(), max_);
  }
  return max_;
}

}  // namespace perf

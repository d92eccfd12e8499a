// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "test.hpp"

namespace perf {

/// All that a run has found out, and under which circumstances.
struct report {
  std::string address;
  std::string device;
  std::string driver;
  weft::poll_policy polling = weft::poll_policy::adaptive;
  std::size_t connections = 1;
  std::vector<outcome> outcomes;
};

/// The driver, the connections, the polling, and over iWARP in user space the checksum, in a line.
[[nodiscard]] std::string circumstances(const report& of, const outcome& first);

/// Prints outcomes as they come, on the standard output.
class table {
 public:
  explicit table(const report& of) noexcept : of_(of) {}
  void add(const outcome& one);

 private:
  const report& of_;
  const operation* section_ = nullptr;
  quantity section_measures_ = quantity::latency;
};

/// The report for programs, indented: circumstances, then one object for each outcome. Times are in nanoseconds.
[[nodiscard]] std::string to_json(const report& all);

/// The report as a picture in SVG 1.1: latency and bandwidth over size, each where there is any, on logarithmic axes.
[[nodiscard]] std::string to_svg(const report& all);

}  // namespace perf

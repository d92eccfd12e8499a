// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "histogram.hpp"
#include "meter.hpp"
#include "operations.hpp"
#include "protocol.hpp"

namespace perf {

[[nodiscard]] std::string_view name_of(quantity what) noexcept;
[[nodiscard]] std::string_view name_of(weft::poll_policy how) noexcept;

/// One line of a report: an operation, one at a time or `depth` of them in flight, at one size.
struct test {
  const operation* what = nullptr;
  quantity measures = quantity::latency;
  std::uint32_t size = 0;
  std::uint16_t depth = 1;  ///< of each connection
  std::size_t connections = 1;
  checking checksum = checking::usual;
  budget warm_up;
  budget length;
  std::chrono::milliseconds resume_within{};  ///< weft::net::connection_options::resume_within
  bool optional = false;  ///< left out where there is too little memory for it, because nobody asked for this size

  [[nodiscard]] const procedure& how() const noexcept { return what->how(measures); }
};

struct outcome {
  const operation* what = nullptr;
  quantity measures = quantity::latency;
  std::uint32_t size = 0;
  std::uint16_t depth = 1;
  std::uint64_t operations = 0;
  double seconds = 0;
  /// Nanoseconds of one trip (procedure::trips).
  struct {
    double min, p50, p90, p99, p999, max;
  } latency{};
  double longest_pause = 0;           ///< nanoseconds in which no operation was done, on any connection
  std::string fabric{};               ///< that carried it
  checking checksum = checking::off;  ///< as it was agreed
  weft::poll_policy server_polling = weft::poll_policy::adaptive;  ///< as the server says

  [[nodiscard]] const procedure& how() const noexcept { return what->how(measures); }
  [[nodiscard]] double rate() const noexcept { return static_cast<double>(operations) / seconds; }
  [[nodiscard]] double bytes_per_second() const noexcept { return rate() * static_cast<double>(size); }
};

/// Who is told how a test gets on, several times a second.
class watcher {
 public:
  /// From 0 to 1.
  virtual void done(double part) = 0;

 protected:
  ~watcher() = default;
};

/// Connects, warms up, measures, closes. Throws weft::error. `seen` may be null.
[[nodiscard]] weft::task<outcome> run(weft::net::device& device, std::string address, test what, watcher* seen);

}  // namespace perf

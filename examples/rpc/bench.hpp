// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <perf/histogram.hpp>

namespace rpc {

struct bench_options {
  std::size_t concurrency = 16;  ///< calls at a time
  std::size_t bytes = 64;        ///< that each call echoes; or fetches
  bool fetch = false;            ///< large answers, by one-sided writes
  std::chrono::milliseconds time{2000};
  weft::duration timeout = std::chrono::seconds(5);  ///< of each call
};

struct bench_result {
  perf::histogram latencies;  ///< of the calls that were answered
  std::uint64_t timed_out = 0;
  std::uint64_t wrong = 0;  ///< answers that were not what was asked for
  weft::duration time{};    ///< that all of it took
};

/// Calls one server over one connection, so many at a time.
[[nodiscard]] weft::task<bench_result> run_bench(weft::net::device& device, std::string address, bench_options options);

}  // namespace rpc

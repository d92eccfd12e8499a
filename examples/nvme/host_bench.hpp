// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <nvme/host.hpp>
#include <perf/histogram.hpp>

namespace nvme {

struct bench_options {
  std::uint32_t name_space = 1;
  unsigned write_percent = 0;  ///< of the commands; the rest are reads
  std::size_t bytes = 4096;    ///< of each command
  std::uint64_t span = 0;      ///< how much of the namespace is used; 0: all
  weft::duration time = std::chrono::seconds(5);
  std::uint64_t operations = UINT64_MAX;  ///< or when so many commands have begun
  /// Writes what tells where and when it was written, and checks that reads find what was written last.
  bool verify = false;
  std::uint64_t seed = 1;
};

struct bench_result {
  perf::histogram reads;  ///< how long each took
  perf::histogram writes;
  double seconds = 0;
  std::uint64_t wrong = 0;       ///< reads that found something else than was written
  std::uint64_t in_capsule = 0;  ///< writes whose data went with the command
  std::uint64_t revoked = 0;     ///< keys that the controller has revoked

  [[nodiscard]] double rate() const { return static_cast<double>(reads.count() + writes.count()) / seconds; }
};

/// Reads and writes at random places, as many at a time as the host's queues take. Writing destroys what the namespace
/// holds. Throws std::invalid_argument for numbers that the namespace does not have.
[[nodiscard]] weft::task<bench_result> run_bench(host& through, bench_options options);

/// For people, several lines; and for programs, times in nanoseconds.
[[nodiscard]] std::string to_text(const bench_result& what);
[[nodiscard]] std::string to_json(const bench_result& what, const host& through, const bench_options& options);

}  // namespace nvme

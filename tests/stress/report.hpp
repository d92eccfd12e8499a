// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kit/standard.hpp"

namespace weft::stress {

/// One kind of work of a campaign: programs out of seeds on one fabric, or one duel on one device.
struct part {
  std::string name;
  double seconds = 0;
  std::uint64_t runs = 0;        ///< seeds, or duels
  std::uint64_t operations = 0;  ///< that have ended: of a duel, each that has begun has
  std::uint64_t failures = 0;    ///< of these: operations that a fault has ended
  std::uint64_t stopped = 0;     ///< and that the program has stopped
  std::uint64_t connections = 0;
  std::uint64_t faults = 0;  ///< that were survived
  std::uint64_t bytes = 0;   ///< that were checked
  std::uint64_t most_resident_bytes = 0;
  std::vector<std::uint64_t> times{};  ///< of operations, in the bins of a score; empty: they are virtual
};

/// What happened in one second of duels.
struct sample {
  std::string what;  ///< the part's name
  double at = 0;     ///< seconds after the start
  double rate = 0;   ///< operations per second
  double p50 = 0;    ///< nanoseconds
  double p99 = 0;
  double resident_bytes = 0;
};

struct report {
  std::string command;
  bool interrupted = false;  ///< before all of it had been done
  double seconds = 0;
  std::vector<part> parts;
  std::vector<sample> samples;
  std::vector<std::string> failures;  ///< each with the command that repeats it
  std::vector<std::string> left_out;  ///< and why
};

[[nodiscard]] std::string to_text(const report& all);
[[nodiscard]] std::string to_json(const report& all);
/// Rate, latency and memory over time, in SVG 1.1.
[[nodiscard]] std::string to_svg(const report& all);

}  // namespace weft::stress

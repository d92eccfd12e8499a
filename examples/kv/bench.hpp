// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <kv/protocol.hpp>
#include <kv/table.hpp>

namespace kv {

/// Which of the values that a key has had: those of one server come one after another.
struct version {
  generation server = 0;     ///< the process to which it was given
  std::uint64_t number = 0;  ///< 0: it was there from the beginning
};

/// What the benchmark finds in a table that was filled for it: a value tells which key it belongs to, which version it
/// is, and whether it is whole.
[[nodiscard]] std::string bench_key(std::uint64_t index);
[[nodiscard]] std::string bench_value(std::uint64_t index, const version& which, std::size_t bytes = 64);
/// Of such a value.
inline constexpr std::size_t least_bench_value = 24;
/// Which version of that key's value it is, if all of it is of one.
[[nodiscard]] std::optional<version> version_in(std::string_view bytes, std::uint64_t index) noexcept;

struct bench_options {
  std::string address;             ///< for one-sided reads and SETs; empty: none of both
  std::string tcp_address;         ///< "HOST:PORT"; empty: nothing is asked over TCP
  std::uint64_t keys = 1'000'000;  ///< that the server was filled with
  std::uint64_t hot_keys = 64;     ///< of these: half of the SETs go to them, and a tenth of the GETs
  std::size_t value_bytes = 64;    ///< of what is set, least_bench_value at least
  std::size_t depth = 16;          ///< GETs under way at a time, each way
  unsigned rounds = 5;             ///< of each way in turn
  std::chrono::milliseconds round{1000};
  /// A network or a server that fails is waited for so long, and then the benchmark goes on. Zero: it ends.
  std::chrono::milliseconds resume_within{};
  bool read_only = false;  ///< nothing is set meanwhile
  std::uint64_t seed = 1;
};

struct bench_result {
  double gets_per_second = 0;      ///< by one-sided reads: the median of the rounds
  double tcp_gets_per_second = 0;  ///< and over TCP
  std::uint64_t gets = 0;
  std::uint64_t sets = 0;  ///< that went on beside them
  std::uint64_t torn = 0;  ///< reads that found a slot half written, and were repeated
  std::uint64_t missing = 0;
  std::uint64_t wrong = 0;  ///< values that were returned and were not whole
  /// Values that were returned and are older than what the server had when they were asked for, or another server's.
  std::uint64_t stale = 0;
  std::uint64_t servers = 0;  ///< processes that have answered, one after another
  std::uint64_t lost = 0;     ///< operations that ended with their connection
};

/// Asks one server each way in turn, while another connection sets.
[[nodiscard]] weft::task<bench_result> run_bench(weft::net::device& device, bench_options options);

}  // namespace kv

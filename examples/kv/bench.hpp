// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <kv/table.hpp>

namespace kv {

/// What the benchmark finds in a table that was filled for it: a value tells which key it belongs to, which version it
/// is, and whether it is whole.
[[nodiscard]] std::string bench_key(std::uint64_t index);
[[nodiscard]] value bench_value(std::uint64_t index, std::uint64_t version) noexcept;
/// Whether all of it is of one version of that key's.
[[nodiscard]] bool is_whole(std::string_view bytes, std::uint64_t index) noexcept;

struct bench_options {
  std::string address;
  std::string tcp_address;         ///< "HOST:PORT"
  std::uint64_t keys = 1'000'000;  ///< that the server was filled with
  std::uint64_t hot_keys = 64;     ///< of these: half of the SETs go to them, and a tenth of the GETs
  std::size_t depth = 16;          ///< GETs under way at a time, each way
  unsigned rounds = 5;             ///< of each way in turn
  std::chrono::milliseconds round{1000};
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
};

/// Asks one server both ways in turn, while another connection sets.
[[nodiscard]] weft::task<bench_result> run_bench(weft::net::device& device, bench_options options);

}  // namespace kv

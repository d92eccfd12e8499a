// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/core.h>

#include <cstdio>

#include "units.hpp"

namespace perf {
namespace {

constexpr double ns_per_us = 1000;

std::string micro(double nanoseconds) { return format_figure(nanoseconds / ns_per_us); }

}  // namespace

std::string circumstances(const report& of, const outcome& first) {
  const bool chooses_checksum = first.fabric.starts_with("iwarp");
  return fmt::format("{}, {} connection{}{}{}, polling: {} here, {} there", of.driver, of.connections,
                     of.connections == 1 ? "" : "s", chooses_checksum ? ", checksum " : "",
                     chooses_checksum ? name_of(first.checksum) : "", name_of(of.polling),
                     name_of(first.server_polling));
}

void table::add(const outcome& one) {
  if (section_ == nullptr) fmt::print("{} over {}, {}\n", of_.address, one.fabric, circumstances(of_, one));
  if (section_ != one.what || section_measures_ != one.measures) {
    section_ = one.what;
    section_measures_ = one.measures;
    fmt::print("\n{} {}, {} in flight; times in us, {}\n", one.what->name, name_of(one.measures), one.depth,
               one.how().meaning);
    fmt::print("{:>6} {:>11} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "size", "operations",
               "per second", "GB/s", "min", "p50", "p90", "p99", "p99.9", "max", "pause");
  }
  const auto& time = one.latency;
  fmt::print("{:>6} {:>11} {:>11.0f} {:>8.3f} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", format_size(one.size),
             one.operations, one.rate(), one.bytes_per_second() / 1e9, micro(time.min), micro(time.p50),
             micro(time.p90), micro(time.p99), micro(time.p999), micro(time.max), micro(one.longest_pause));
  std::fflush(stdout);
}

}  // namespace perf

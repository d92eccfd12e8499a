// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <weft/runtime/executor.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <fstream>
#include <optional>

#include "progress.hpp"
#include "report.hpp"
#include "units.hpp"

namespace perf {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw weft::system_error(errno, fmt::format("cannot write '{}'", path));
}

// Before anything is measured: it would be a pity afterwards.
void check_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) refuse(path);
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::trunc);
  file << content << std::flush;
  if (!file) refuse(path);
}

std::string title_of(const test& one) {
  return fmt::format("{} {} of {}", one.what->name, name_of(one.measures), format_size(one.size));
}

// Empty if it is left out for want of memory, of which the user is told.
weft::task<std::optional<outcome>> run_one(weft::net::device& device, const std::string& address, const test& next,
                                           progress& bar) {
  bar.begin(next);
  try {
    const outcome one = co_await run(device, address, next, &bar);
    bar.erase();
    co_return one;
  } catch (const weft::error& why) {
    if (!next.optional || why.code() != weft::errc::no_memory) throw why.within(title_of(next));
    bar.erase();
    fmt::print(stderr, "weft-perf: left out: {}: {}\n", title_of(next), printable(why.what()));
  }
  co_return std::nullopt;
}

}  // namespace

weft::task<> run_tests(weft::net::device& device, run_options options) {
  if (!options.plot.empty()) check_writable(options.plot);
  report all{.address = options.address,
             .device = std::string(device.name()),
             .driver = std::string(weft::executor::current()->driver()),
             .polling = options.polling,
             .connections = options.tests.front().connections,
             .outcomes = {}};
  table shown(all);
  progress bar;
  for (const test& next : options.tests) {
    const std::optional<outcome> one = co_await run_one(device, options.address, next, bar);
    if (!one) continue;
    all.outcomes.push_back(*one);
    if (!options.json) shown.add(*one);
  }
  if (all.outcomes.empty()) throw weft::error(weft::errc::no_memory, "nothing was measured");
  if (options.json) fmt::print("{}\n", to_json(all));
  if (!options.plot.empty()) write_file(options.plot, to_svg(all));
}

}  // namespace perf

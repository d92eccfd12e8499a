// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <weft/runtime/executor.hpp>

#include <fmt/core.h>

#include "progress.hpp"
#include "report.hpp"
#include "units.hpp"

namespace perf {

weft::task<> run_tests(weft::net::device& device, run_options options) {
  report all;
  all.address = options.address;
  all.device = device.name();
  all.driver = weft::executor::current()->driver();
  all.polling = options.polling;
  all.connections = options.tests.front().connections;
  table shown(all);
  progress bar;
  for (const test& next : options.tests) {
    bar.begin(next);
    try {
      const outcome one = co_await run(device, options.address, next, &bar);
      bar.erase();
      all.outcomes.push_back(one);
      shown.add(one);
    } catch (const weft::error& why) {
      throw why.within(fmt::format("{} {} of {}", next.what->name, name_of(next.measures), format_size(next.size)));
    }
  }
}

}  // namespace perf

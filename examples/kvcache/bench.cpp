// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include "bench_plan.hpp"

namespace kvcache {

std::vector<double> run_bench(const bench_options& options) {
  switch (options.way) {
    case bench_way::weft:
      return run_weft(options);
    case bench_way::tcp:
      return run_tcp(options);
    case bench_way::memcpy:
      return run_memcpy(options);
  }
  return {};
}

}  // namespace kvcache

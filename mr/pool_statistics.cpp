// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool_statistics.hpp>

#include <fmt/core.h>

namespace weft::mr {

std::string to_string(const budget_statistics& what) {
  return fmt::format("{} of at most {} bytes are in use, {} more are kept at hand by executors, {} allocations wait",
                     what.in_use_bytes, what.max_bytes, what.cached_bytes, what.waiting);
}

void add_to(metrics& all, const pool_statistics& what, std::string_view name) {
  for (const budget which : {budget::send, budget::receive}) {
    const budget_statistics& one = what.of(which);
    const std::string labels =
        metrics::label("pool", name) + ',' + metrics::label("budget", which == budget::send ? "send" : "receive");
    all.gauge("weft_pool_max_bytes", "The most bytes that arenas may take.", labels, one.max_bytes);
    all.gauge("weft_pool_arena_bytes", "Bytes of arenas, which are mapped and registered.", labels, one.arena_bytes);
    all.gauge("weft_pool_in_use_bytes", "Bytes of buffers in use.", labels, one.in_use_bytes);
    all.gauge("weft_pool_cached_bytes", "Bytes of free buffers that executors keep at hand.", labels, one.cached_bytes);
    all.gauge("weft_pool_waiting", "Allocations that wait for free memory.", labels, one.waiting);
  }
  all.counter("weft_pool_failures_total", "Arenas that could not be made.", metrics::label("pool", name),
              what.failures);
}

}  // namespace weft::mr

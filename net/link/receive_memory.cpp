// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/receive_memory.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

namespace weft::net {

void check_receive_memory(const mr::pool& pool, std::size_t count, std::size_t bytes) {
  const std::size_t most = pool.max_buffers(bytes, mr::budget::receive);
  if (count > most) {
    throw error(
        errc::no_memory,
        fmt::format("find {} receive buffers of {} bytes, of the {} that the pool has for receives: there is room "
                    "for {}; lower receive_size or the depth, or raise pool_options::max_bytes",
                    count, bytes, pool.statistics().receive.max_bytes, most));
  }
}

task<std::vector<mr::buffer>> find_receive_memory(mr::pool& pool, std::size_t count, std::size_t bytes,
                                                  time_point deadline) {
  check_receive_memory(pool, count, bytes);
  try {
    co_return co_await with_deadline(deadline, pool.allocate_all(count, bytes, mr::budget::receive));
  } catch (const error& why) {
    if (why.code() != errc::timed_out) throw;
    const mr::budget_statistics full = pool.statistics().receive;
    throw error(errc::timed_out, fmt::format("wait for {} receive buffers of {} bytes, of the {} that the pool has: {}",
                                             count, bytes, full.max_bytes, to_string(full)));
  }
}

}  // namespace weft::net

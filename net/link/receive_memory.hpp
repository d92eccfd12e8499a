// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/pool.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace weft::net {

struct own_receives;
class shared_receive_state;

/// What a connection receives into: memory of its own, or else what it shares with others.
struct receive_memory {
  std::shared_ptr<own_receives> own;
  std::shared_ptr<shared_receive_state> shared;
};

/// errc::no_memory for more than the pool can ever have.
void check_receive_memory(const mr::pool& pool, std::size_t count, std::size_t bytes);

/// What receives are posted with before there is a message: all of it, or errc::timed_out at the deadline with how full
/// the pool is. errc::no_memory at once for more than the pool can ever have.
[[nodiscard]] task<std::vector<mr::buffer>> find_receive_memory(mr::pool& pool, std::size_t count, std::size_t bytes,
                                                                time_point deadline);

}  // namespace weft::net

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

/// The receives of a connection: its own, or else those that it shares with others.
struct receive_memory {
  std::shared_ptr<own_receives> own;
  std::shared_ptr<shared_receive_state> shared;
};

/// Throws errc::no_memory if the pool can never hold `count` receives of `bytes`.
void check_receive_memory(const mr::pool& pool, std::size_t count, std::size_t bytes);

/// Allocates all buffers for the first receives, or none. Throws errc::timed_out at the deadline, with a text that says
/// how full the pool is; errc::no_memory at once if the pool can never hold the buffers; and what pool::allocate_all()
/// throws.
task<std::vector<mr::buffer>> find_receive_memory(mr::pool& pool, std::size_t count, std::size_t bytes,
                                                  time_point deadline);

}  // namespace weft::net

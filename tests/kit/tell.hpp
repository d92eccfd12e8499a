// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/net/connection.hpp>
#include <weft/runtime/task.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// Tells the peer which memory it may use, in a message that hear_region() understands.
[[nodiscard]] inline task<> tell(net::connection& peer, mr::pool& pool, mr::remote_region where) {
  auto words = co_await pool.allocate(mr::remote_region::max_packed_bytes);
  std::ranges::copy(where.pack(), words.bytes().begin());
  co_await peer.send(std::move(words));
}
[[nodiscard]] inline task<mr::remote_region> hear_region(net::connection& peer) {
  const auto words = co_await peer.recv_or_throw();
  co_return mr::remote_region::unpack(words.bytes());
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "peers.hpp"

namespace weft::test {

/// How many round trips each of these connections has made when all together have made `mean` for each: all ask and
/// answer at once, as fast as they can. Closes them.
inline task<std::vector<std::size_t>> round_trips_of_each(mr::pool& pool, std::vector<connected>& all,
                                                          std::size_t mean) {
  std::vector<std::size_t> served(all.size());
  std::size_t left = all.size() * mean;
  const auto ask = [&](net::connection& peer, std::size_t& count) -> task<> {
    while (left > 0) {
      co_await peer.send(co_await pool.allocate(64));
      static_cast<void>(co_await peer.recv_or_throw());
      if (left == 0) break;
      --left;
      ++count;
    }
    co_await peer.close();
  };
  const auto talk = [&](scope& talking) -> task<> {
    for (connected& ends : all) talking.spawn(echo(ends.server));
    for (std::size_t i = 0; i < all.size(); ++i) talking.spawn(ask(all[i].client, served[i]));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, talk);
  co_return served;
}

}  // namespace weft::test

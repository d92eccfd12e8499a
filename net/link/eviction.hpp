// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace weft::net {

/// Chooses the peer that gives way when all places are taken: the oldest one of the origin that has the most peers in
/// `all`, so that an origin that takes many places loses one of them. `all` must not be empty, and must be in order of
/// age, oldest first.
template <class Peer>
Peer& peer_to_evict(const std::vector<Peer*>& all) {
  std::map<peer_origin, std::size_t> counts;
  std::size_t most = 0;
  for (const Peer* each : all) most = std::max(most, ++counts[each->origin()]);
  return **std::find_if(all.begin(), all.end(), [&](const Peer* each) { return counts[each->origin()] == most; });
}

}  // namespace weft::net

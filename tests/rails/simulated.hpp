// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/verbs/transport.hpp>

#include <list>

#include "kit/test.hpp"
#include "sim/rdma.hpp"

namespace weft::test {

/// What a test of rails runs in: a kernel with its network and time, and devices that are made as they are opened.
struct simulated_place {
  explicit simulated_place(std::uint64_t seed = 1, const sim::conditions& like = {}) : world(seed, like) {}

  [[nodiscard]] std::unique_ptr<net::transport> open_verbs(const sim::rdma_traits& like = {}) {
    return net::verbs::open_transport(sim::rdma::device_name, devices.emplace_back(world, like));
  }
  [[nodiscard]] std::unique_ptr<net::transport> open_iwarp() {
    return net::iwarp::open_transport({.checksum = false}, world);
  }
  /// Once all devices are closed.
  void expect_nothing_left() {
    for (sim::rdma& each : devices) EXPECT_EQ(each.leaks(), "");
    EXPECT_EQ(world.leaks(), "");
  }

  sim::world world;
  std::list<sim::rdma> devices{};
};

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// What the example rpc says where little memory may be locked, with a simulated RDMA device.
#include <weft/net/verbs/transport.hpp>
#include <weft/weft.hpp>

#include <gtest/gtest.h>

#include <cstdio>

#include "kit/locked_memory.hpp"
#include "rdma.hpp"
#include <rpc/client.hpp>

namespace rpc {
namespace {

[[noreturn]] void fetch_with_little_memory_to_lock() {
  weft::test::limit_locked_memory(8 << 20);
  weft::sim::world place(1, {});
  weft::sim::rdma below(place, weft::sim::rdma_traits{});
  const weft::net::device_options options{.pool = {.huge_pages = false, .system_calls = &place}};
  auto device =
      weft::net::device::open(weft::net::verbs::open_transport(weft::sim::rdma::device_name, below, {}), options);
  weft::executor ex(place.options(false));
  client calls(device, "127.0.0.1:7471");
  try {
    static_cast<void>(ex.run(calls.fetch({.method = "fetch"}, 4 << 20)));
  } catch (const weft::error& why) {
    std::fprintf(stderr, "%s\n", why.what());
  }
  ::_exit(0);
}

TEST(rpc_limits, room_that_the_locked_memory_limit_forbids_is_refused_with_that_reason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child begins threads
  EXPECT_EXIT(fetch_with_little_memory_to_lock(), testing::ExitedWithCode(0),
              "are possible, because the locked-memory limit is 8388608 bytes");
}

}  // namespace
}  // namespace rpc

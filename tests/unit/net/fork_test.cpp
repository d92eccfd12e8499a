// SPDX-License-Identifier: Apache-2.0
// A child of fork(2) with a device and an executor of its own.

#include <cstdlib>

#include "kit/child.hpp"
#include "net/support.hpp"

// The thread sanitizer lets no child of a process with threads start one.
#ifndef WEFT_TEST_TSAN

namespace weft {
namespace {

task<bool> echo_once(net::device& device) {
  auto listener = co_await device.listen("127.0.0.1:0");
  const std::string address(listener.address());
  const auto serve = [&]() -> task<> {
    auto request = co_await listener.next();
    auto peer = co_await request->accept();
    while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
  };
  const auto ask = [&]() -> task<bool> {
    auto peer = co_await device.connect(address);
    auto question = co_await device.pool().allocate(100);
    co_await peer.send(std::move(question));
    const auto answer = co_await peer.recv_or_throw();
    co_await peer.close();
    co_return answer.payload.size() == 100;
  };
  const auto both = co_await when_all(serve(), ask());
  co_return std::get<1>(both);
}

int echo_on_a_device_of_ones_own() {
  auto device = net::device::open("iwarp");
  executor home;
  return home.run(echo_once(device)) ? 0 : 1;
}

// The workers of the parent have registered memory when the child is forked.
TEST(fork, a_child_has_a_device_of_its_own_beside_the_copy_of_its_parents) {
  auto device = net::device::open("iwarp");
  executor home;
  EXPECT_TRUE(home.run(echo_once(device)));
  const auto echo_and_exit = []() -> int { std::exit(echo_on_a_device_of_ones_own()); };
  EXPECT_EQ(test::end_of(test::fork_for(echo_and_exit)), 0);
  EXPECT_TRUE(home.run(echo_once(device)));
}

}  // namespace
}  // namespace weft

#endif

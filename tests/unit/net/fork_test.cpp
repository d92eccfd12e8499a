// SPDX-License-Identifier: Apache-2.0
// A child of fork(2) with a device and an executor of its own.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "net/support.hpp"

// The thread sanitizer lets no child of a process with threads start one.
#if defined(__SANITIZE_THREAD__)
#define WEFT_TEST_NO_THREADS_IN_A_CHILD
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TEST_NO_THREADS_IN_A_CHILD
#endif
#endif
#ifndef WEFT_TEST_NO_THREADS_IN_A_CHILD

namespace weft {
namespace {

task<> echo_once(net::device& device, bool& answered) {
  auto listener = co_await device.listen("127.0.0.1:0");
  const std::string address(listener.address());
  const auto serve = [&]() -> task<> {
    auto request = co_await listener.next();
    auto peer = co_await request->accept();
    while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
  };
  const auto ask = [&]() -> task<> {
    auto peer = co_await device.connect(address);
    auto question = co_await device.pool().allocate(100);
    co_await peer.send(std::move(question));
    const auto answer = co_await peer.recv_or_throw();
    answered = answer.payload.size() == 100;
    co_await peer.close();
  };
  co_await when_all(serve(), ask());
}

bool echo_on_a_device_of_ones_own() {
  auto device = net::device::open("iwarp");
  executor home;
  bool answered = false;
  home.run(echo_once(device, answered));
  return answered;
}

// The workers of the parent have registered memory when the child is forked.
TEST(fork, a_child_has_a_device_of_its_own_beside_the_copy_of_its_parents) {
  auto device = net::device::open("iwarp");
  executor home;
  bool answered = false;
  home.run(echo_once(device, answered));
  EXPECT_TRUE(answered);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // rather than hang
    const bool right = echo_on_a_device_of_ones_own();
    std::exit(right ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  answered = false;
  home.run(echo_once(device, answered));
  EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace weft

#endif

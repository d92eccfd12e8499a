// SPDX-License-Identifier: Apache-2.0
// Receives that connections share, let go on another thread than their executor's.
#include <weft/weft.hpp>

#include "failing_calls.hpp"
#include "kit/slow_loop.hpp"
#include "kit/test.hpp"

namespace weft::net {
namespace {

// Its executor's thread hears of it, whatever there is no memory for.
TEST(shared_receives_without_memory, are_let_go_on_another_thread) {
  auto both = device::open("iwarp");
  executor home;
  std::optional<shared_receives> shared;
  const auto make = [&]() -> task<> { shared.emplace(co_await both.share_receives({.receive_size = 64, .depth = 4})); };
  const auto look_at_mail = []() -> task<> {
    for (int i = 0; i < 3; ++i) co_await yield();
  };
  home.run(make());
  EXPECT_NE(both.pool().statistics().receive.in_use_bytes, 0U);
  std::thread([&] {
    test::fail_call(1, 1000);
    shared.reset();
    test::fail_call(0);
  }).join();
  home.run(look_at_mail());
  EXPECT_EQ(both.pool().statistics().receive.in_use_bytes, 0U);
}

// The executor may have ended, and have been destroyed, before the other thread goes on.
TEST(shared_receives_on_another_thread, are_released_by_their_executor_while_that_thread_is_held_up) {
  auto both = device::open("iwarp");
  test::slow_loop loop;
  executor home;
  std::optional<shared_receives> shared;
  const auto make = [&]() -> task<> { shared.emplace(co_await both.share_receives({.receive_size = 64, .depth = 4})); };
  home.run(make());
  core_of(home).drive_from(&loop);
  while (core_of(home).step() == duration::zero()) {
  }
  std::jthread other([&] { shared.reset(); });
  loop.entered.acquire();
  static_cast<void>(core_of(home).step());
  EXPECT_EQ(both.pool().statistics().receive.in_use_bytes, 0U) << "the other thread will release them";
  loop.go_on.release();
  other.join();
  core_of(home).drive_from(nullptr);
}

}  // namespace
}  // namespace weft::net

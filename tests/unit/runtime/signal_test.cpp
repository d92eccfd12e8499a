// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include "runtime/support.hpp"

namespace weft {
namespace {

bool blocked(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

TEST(signal_set, yields_a_signal_that_came_before_anybody_waited) {
  signal_set signals({SIGUSR1, SIGUSR2});
  const auto root = [&]() -> task<int> {
    raise(SIGUSR2);
    co_return co_await signals.next();
  };
  EXPECT_EQ(test::run(root()), SIGUSR2);
}

TEST(signal_set, wakes_a_task_that_waits) {
  signal_set signals({SIGUSR1});
  int heard = 0;
  const auto listen = [&]() -> task<> {
    for (int i = 0; i < 2; ++i) heard += co_await signals.next() == SIGUSR1 ? 1 : 0;
  };
  const auto body = [&](scope& children) -> task<> {
    children.spawn(listen());
    while (heard < 2) {
      const int before = heard;
      co_await yield();
      pthread_kill(pthread_self(), SIGUSR1);
      while (heard == before) co_await yield();
    }
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(heard, 2);
}

TEST(signal_set, a_stop_ends_the_wait_and_a_later_signal_is_not_lost) {
  signal_set signals({SIGUSR1});
  executor home;
  const auto impatient = [&]() -> task<> { co_await with_timeout(std::chrono::milliseconds(1), signals.next()); };
  EXPECT_EQ(test::code_thrown_by([&] { home.run(impatient()); }), errc::timed_out);
  raise(SIGUSR1);
  EXPECT_EQ(home.run(signals.next()), SIGUSR1);
}

TEST(signal_set, gives_the_thread_its_signals_back) {
  ASSERT_FALSE(blocked(SIGUSR1));
  {
    const signal_set signals({SIGUSR1});
    EXPECT_TRUE(blocked(SIGUSR1));
  }
  EXPECT_FALSE(blocked(SIGUSR1));
}

}  // namespace
}  // namespace weft

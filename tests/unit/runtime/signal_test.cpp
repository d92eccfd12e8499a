// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/run_until_signal.hpp>

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
  const auto raise_each = [&]() -> task<> {
    while (heard < 2) {
      const int before = heard;
      co_await yield();
      pthread_kill(pthread_self(), SIGUSR1);
      while (heard == before) co_await yield();
    }
  };
  test::run(when_all(listen(), raise_each()));
  EXPECT_EQ(heard, 2);
}

TEST(signal_set, a_stop_ends_the_wait_and_a_later_signal_is_not_lost) {
  signal_set signals({SIGUSR1});
  executor home;
  EXPECT_EQ(home.run(test::code_of(with_timeout(std::chrono::milliseconds(1), signals.next()))), errc::timed_out);
  raise(SIGUSR1);
  EXPECT_EQ(home.run(signals.next()), SIGUSR1);
}

TEST(signal_set, several_tasks_get_one_each_and_a_stop_ends_the_rest) {
  signal_set signals({SIGUSR1});
  std::vector<int> heard;
  int stopped = 0;
  const auto listen = [&]() -> task<> {
    const result<int> got = co_await as_result(signals.next());
    got ? heard.push_back(*got) : void(++stopped);
  };
  test::run_scope([&](scope& children) -> task<> {
    for (int i = 0; i < 3; ++i) children.spawn(listen());
    for (std::size_t n = 1; n <= 2; ++n) {
      co_await yield();
      raise(SIGUSR1);
      while (heard.size() < n) co_await yield();
    }
    children.request_stop();
  });
  EXPECT_EQ(heard, (std::vector<int>{SIGUSR1, SIGUSR1}));
  EXPECT_EQ(stopped, 1);
}

TEST(signal_set, gives_the_thread_its_signals_back) {
  ASSERT_FALSE(blocked(SIGUSR1));
  {
    const signal_set signals({SIGUSR1});
    EXPECT_TRUE(blocked(SIGUSR1));
  }
  EXPECT_FALSE(blocked(SIGUSR1));
}

TEST(signal_set, restored_early_gives_the_thread_its_signals_back_once) {
  signal_set signals({SIGUSR1});
  signals.restore();
  EXPECT_FALSE(blocked(SIGUSR1));
  const signal_set later({SIGUSR1});
  signals.restore();
  EXPECT_TRUE(blocked(SIGUSR1));
}

TEST(signal_set, leaves_signals_blocked_that_others_have_blocked) {
  const signal_set earlier({SIGUSR1});
  signal_set signals({SIGUSR1, SIGUSR2});
  const signal_set later({SIGURG});
  signals.restore();
  EXPECT_TRUE(blocked(SIGUSR1));
  EXPECT_FALSE(blocked(SIGUSR2));
  EXPECT_TRUE(blocked(SIGURG));
}

// ---- run_until_signal ----

task<int> wait_for_ever() {
  event never;
  co_await never.wait();
  co_return 0;
}

task<int> raise_and_wait(int number) {
  raise(number);
  co_return co_await wait_for_ever();
}

// Takes its time to end: `turns` of the executor after it was asked to.
task<int> tidy_up(int number, int turns) {
  bool asked = false;
  try {
    co_await raise_and_wait(number);
  } catch (const error&) {
    asked = true;
  }
  for (int i = 0; i < turns; ++i) co_await yield();
  co_return asked ? turns : 0;
}

TEST(run_until_signal, yields_what_a_task_returns_that_no_signal_stops) {
  executor home;
  const auto one = [&]() -> task<int> { co_return 1; };
  const auto ended = run_until_signal(home, one());
  EXPECT_EQ(ended.signal, 0);
  EXPECT_EQ(ended.result.value(), 1);
  EXPECT_FALSE(blocked(SIGINT));
  EXPECT_FALSE(blocked(SIGTERM));
}

TEST(run_until_signal, throws_what_a_task_throws_that_no_signal_stops) {
  executor home;
  const auto fail = [&]() -> task<> {
    throw error(errc::timed_out, "test");
    co_return;
  };
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(run_until_signal(home, fail())); }), errc::timed_out);
}

TEST(run_until_signal, asks_the_task_to_stop_at_a_signal_and_tells_which_it_was) {
  for (const int number : {SIGINT, SIGTERM}) {
    executor home;
    const auto ended = run_until_signal(home, raise_and_wait(number));
    EXPECT_EQ(ended.signal, number);
    ASSERT_FALSE(ended.result.has_value());
    EXPECT_EQ(ended.result.error().code(), errc::canceled);
  }
}

TEST(run_until_signal, waits_for_the_task_that_it_has_asked_to_stop_and_has_its_result) {
  executor home;
  const auto ended = run_until_signal(home, tidy_up(SIGTERM, 10));
  EXPECT_EQ(ended.signal, SIGTERM);
  EXPECT_EQ(ended.result.value(), 10);
}

TEST(run_until_signal, still_throws_what_is_no_error_of_weft_after_a_signal) {
  executor home;
  const auto fail = [&]() -> task<> {
    co_await tidy_up(SIGTERM, 0);
    throw std::runtime_error("test");
  };
  EXPECT_THROW(static_cast<void>(run_until_signal(home, fail())), std::runtime_error);
}

TEST(run_until_signal, heeds_a_signal_that_came_before_the_task_began) {
  signal_set signals({SIGUSR1});
  executor home;
  raise(SIGUSR1);
  EXPECT_EQ(run_until_signal(home, signals, wait_for_ever()).signal, SIGUSR1);
}

TEST(run_until_signal, a_second_signal_ends_the_process_as_it_would_have_without) {
  const auto deaf = [] {
    executor home;
    const auto ignore_stops = []() -> task<> {
      co_await tidy_up(SIGINT, 1);
      raise(SIGTERM);
    };
    static_cast<void>(run_until_signal(home, ignore_stops()));
  };
  EXPECT_EXIT(deaf(), testing::KilledBySignal(SIGTERM), "");
}

TEST(run_until_signal, drains_at_the_first_signal_and_stops_the_task_at_the_second) {
  signal_set signals({SIGUSR1, SIGUSR2});
  executor home;
  int drained = 0;
  const auto drain = [&] {
    ++drained;
    raise(SIGUSR2);
  };
  const auto ended = run_until_signal(home, signals, raise_and_wait(SIGUSR1), drain);
  EXPECT_EQ(drained, 1);
  EXPECT_EQ(ended.signal, SIGUSR1);
  EXPECT_EQ(ended.result.error().code(), errc::canceled);
  EXPECT_FALSE(blocked(SIGUSR1));
}

TEST(run_until_signal, leaves_a_task_alone_that_ends_once_it_is_drained) {
  signal_set signals({SIGUSR1});
  executor home;
  event no_more_guests;
  const auto serve = [&]() -> task<int> {
    raise(SIGUSR1);
    co_await no_more_guests.wait();
    co_return 7;
  };
  const auto ended = run_until_signal(home, signals, serve(), [&] { no_more_guests.set(); });
  EXPECT_EQ(ended.signal, SIGUSR1);
  EXPECT_EQ(ended.result.value(), 7);
  EXPECT_TRUE(blocked(SIGUSR1));
}

}  // namespace
}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/with_timeout.hpp>

#include <unistd.h>

#include "runtime/support.hpp"

namespace weft {
namespace {

class with_timeout_test : public testing::Test {
 protected:
  test::simulation world_;
  executor home_{world_.options()};

  std::error_code code_of(task<> root) {
    return test::code_thrown_by([&] { home_.run(std::move(root)); });
  }
};

TEST_F(with_timeout_test, stops_the_operation_at_its_deadline_and_says_what_timed_out) {
  const auto failure = home_.run(test::failure_of(with_timeout(5ms, sleep_for(1h))));
  EXPECT_TRUE(test::failed_with(failure, errc::timed_out));
  EXPECT_FALSE(failure->posted());
  EXPECT_STREQ(failure->what(), "sleep: timed out");
  EXPECT_EQ(world_.elapsed(), 5ms);
}

TEST_F(with_timeout_test, a_result_that_comes_first_wins_and_leaves_no_timer) {
  const auto quick = []() -> task<int> {
    co_await sleep_for(1ms);
    co_return 7;
  };
  EXPECT_EQ(home_.run(with_timeout(1h, quick())), 7);
  EXPECT_EQ(world_.elapsed(), 1ms);
}

TEST_F(with_timeout_test, a_result_wins_even_when_the_deadline_has_passed_meanwhile) {
  const auto stubborn = []() -> task<int> {
    try {
      co_await sleep_for(1h);
    } catch (const error&) {  // what a posted operation does: it goes on to its end
    }
    co_return 7;
  };
  EXPECT_EQ(home_.run(with_timeout(1ms, stubborn())), 7);
}

TEST_F(with_timeout_test, a_posted_operation_stays_posted_when_it_times_out) {
  const auto posted = []() -> task<> {
    try {
      co_await sleep_for(1h);
    } catch (const error& failure) {
      throw failure.as_posted();
    }
  };
  const auto failure = home_.run(test::failure_of(with_timeout(1ms, posted())));
  EXPECT_TRUE(test::failed_with(failure, errc::timed_out));
  EXPECT_TRUE(failure->posted());
}

// Two steps, whose answers are there when the executor comes back from something else, an hour late.
TEST_F(with_timeout_test, what_has_come_in_time_wins_over_an_executor_that_was_late_itself) {
  test::socket_pair first = test::unix_pair();
  test::socket_pair second = test::unix_pair();
  const auto hear = [&]() -> task<> {
    test::checked_call(co_await detail::io_wait(io_kind::readable, first.a), "wait for the first");
    test::checked_call(co_await detail::io_wait(io_kind::readable, second.a), "wait for the second");
  };
  const auto be_late = [&]() -> task<> {
    co_await yield();
    EXPECT_EQ(::write(first.b.fd(), "x", 1), 1);
    EXPECT_EQ(::write(second.b.fd(), "x", 1), 1);
    world_.advance(1h);
    co_await yield();  // other work waits, so that the kernel comes after the timers
  };
  const auto both = home_.run(when_all(test::failure_of(with_timeout(1s, hear())), be_late()));
  const std::optional<error>& failure = std::get<0>(both);
  EXPECT_FALSE(failure) << test::words_of(failure);
}

class error_with_details : public error {
 public:
  using error::error;
  int detail = 0;
};

TEST_F(with_timeout_test, an_error_that_is_not_its_own_passes_unchanged) {
  const auto fails = []() -> task<> {
    co_await yield();
    error_with_details failure(errc::closed, "receive");
    failure.detail = 7;
    throw failure;
  };
  try {
    home_.run(with_timeout(1h, fails()));
    FAIL() << "no exception";
  } catch (const error_with_details& failure) {
    EXPECT_EQ(failure.detail, 7);
  }
}

TEST_F(with_timeout_test, nested_deadlines_are_told_apart) {
  std::vector<std::string> heard;
  const auto inner = [&](duration time) -> task<> {
    try {
      co_await with_timeout(time, sleep_for(1h));
    } catch (const error& failure) {
      heard.push_back(failure.code() == errc::timed_out ? "inner timed out" : "inner canceled");
      throw;
    }
  };
  const auto outer = [&](duration outer_time, duration inner_time) -> task<> {
    co_await with_timeout(outer_time, inner(inner_time));
  };
  EXPECT_EQ(code_of(outer(10ms, 1ms)), errc::timed_out);
  EXPECT_EQ(code_of(outer(1ms, 10ms)), errc::timed_out);
  EXPECT_EQ(heard, (std::vector<std::string>{"inner timed out", "inner canceled"}));
}

TEST_F(with_timeout_test, the_time_counts_from_when_it_is_awaited) {
  const auto root = []() -> task<> {
    auto limited = with_timeout(10ms, sleep_for(5ms));
    co_await sleep_for(1h);
    co_await std::move(limited);
  };
  EXPECT_EQ(code_of(root()), std::error_code());
}

TEST_F(with_timeout_test, a_time_that_no_clock_can_hold_is_for_ever) {
  const auto root = []() -> task<> {
    co_await with_timeout(std::chrono::milliseconds::max(), sleep_for(1h));
    co_await with_timeout(std::chrono::hours::max(), sleep_for(1h));
    co_await with_timeout(std::chrono::duration<double>(1e300), sleep_for(1h));
    co_await with_timeout(2h, sleep_for(std::chrono::duration<double>(0.5)));
  };
  EXPECT_EQ(code_of(root()), std::error_code());
  EXPECT_EQ(code_of(with_timeout(1h, sleep_for(std::chrono::hours::max()))), errc::timed_out);
  EXPECT_EQ(code_of(with_timeout(std::chrono::hours::min(), sleep_for(1h))), errc::timed_out);
}

TEST_F(with_timeout_test, a_deadline_in_the_past_stops_what_has_to_wait) {
  EXPECT_EQ(code_of(with_deadline(time_point(), sleep_for(1h))), errc::timed_out);
  EXPECT_EQ(world_.elapsed(), 0ms);
}

TEST_F(with_timeout_test, afterwards_the_task_is_under_its_old_token_again) {
  const auto root = []() -> task<> {
    EXPECT_FALSE(co_await as_result(with_timeout(1ms, sleep_for(1h))));
    co_await sleep_for(1h);
  };
  EXPECT_EQ(code_of(root()), std::error_code());
}

}  // namespace
}  // namespace weft

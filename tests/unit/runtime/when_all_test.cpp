// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/when_all.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

TASK_TEST(when_all, yields_every_result_in_the_order_of_the_tasks) {
  const auto text = []() -> task<std::unique_ptr<std::string>> { co_return std::make_unique<std::string>("text"); };
  const auto none = []() -> task<> { co_await yield(); };
  const auto results = co_await when_all(test::number_after(5, 1), text(), none(), test::number_after(0, 2));
  EXPECT_EQ(std::get<0>(results), 1);
  EXPECT_EQ(*std::get<1>(results), "text");
  EXPECT_EQ(std::get<3>(results), 2);
}

TEST(when_all, runs_any_number_of_tasks_side_by_side) {
  event all_are_here;
  std::size_t here = 0;
  const auto meet = [&](int value) -> task<int> {
    if (++here == 100) all_are_here.set();
    co_await all_are_here.wait();
    co_return value;
  };
  std::vector<task<int>> tasks;
  for (int i = 0; i < 100; ++i) tasks.push_back(meet(i));
  const std::vector<int> results = test::run(when_all(std::move(tasks)));
  ASSERT_EQ(results.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(results[static_cast<std::size_t>(i)], i);
}

TEST(when_all, of_nothing_ends_at_once) {
  test::run(when_all(std::vector<task<>>()));
  EXPECT_TRUE(test::run(when_all(std::vector<task<int>>())).empty());
}

TEST(when_all, the_first_failure_stops_the_others_and_waits_for_them) {
  bool ended = false;
  const auto run = [&] { test::run(when_all(test::stop_slowly(ended), test::fail_after(3), test::fail_after(6))); };
  EXPECT_EQ(test::words_thrown_by<std::runtime_error>(run), "after 3");
  EXPECT_TRUE(ended);
}

TEST(when_all, one_that_is_stopped_throws_instead_of_yielding_results_that_are_missing) {
  test::simulated_executor home;
  const auto forever = []() -> task<int> {
    co_await sleep_for(duration::max());
    co_return 1;
  };
  EXPECT_EQ(home.run(test::code_of(with_timeout(1s, when_all(forever(), test::number_after(0, 1))))), errc::timed_out);
  std::vector<task<int>> tasks;
  tasks.push_back(forever());
  EXPECT_EQ(home.run(test::code_of(with_timeout(1s, when_all(std::move(tasks))))), errc::timed_out);
}

TEST(when_all, takes_operations_and_handles_as_they_are) {
  test::simulated_executor home;
  event gate;
  channel<int> numbers(1);
  const auto open = [&]() -> task<int> {
    co_await yield();
    gate.set();
    co_return 1;
  };
  test::run_scope(home, [&](scope& children) -> task<> {
    auto child = children.spawn(test::number_after(3, 4));
    EXPECT_TRUE(numbers.try_send(5));
    auto all = co_await when_all(gate.wait(), open(), numbers.receive(), sleep_for(2s), child);
    EXPECT_EQ(std::get<1>(all), 1);
    EXPECT_EQ(std::get<2>(all), 5);
    EXPECT_EQ(std::get<4>(all), 4);
    EXPECT_EQ(home.world.elapsed(), 2s);
    std::vector<spawned<int>> several;
    for (int i = 0; i < 3; ++i) several.push_back(children.spawn(test::number_after(i, i)));
    const std::vector<int> values = co_await when_all(std::move(several));
    EXPECT_EQ(values, (std::vector<int>{0, 1, 2}));
  });
}

TASK_TEST(when_all_results, a_failure_does_not_lose_what_another_has_received) {
  channel<int> jobs(1);
  EXPECT_TRUE(jobs.try_send(42));
  event never;
  const auto fail = []() -> task<int> {
    throw error(errc::peer_vanished, "receive");
    co_return 0;
  };
  const auto all = co_await when_all_results(fail(), jobs.receive(), never.wait());
  EXPECT_EQ(std::get<0>(all).error().code(), errc::peer_vanished);
  EXPECT_EQ(std::get<1>(all).value(), 42);
  EXPECT_EQ(std::get<2>(all).error().code(), errc::canceled);
}

TEST(when_all_results, a_stop_does_not_lose_what_has_come) {
  channel<int> jobs(1);
  event never;
  std::optional<int> received;
  const auto both = [&]() -> task<> {
    const auto all = co_await when_all_results(jobs.receive(), never.wait());
    received = *std::get<0>(all).value();
    EXPECT_EQ(std::get<1>(all).error().code(), errc::canceled);
  };
  test::run_scope([&](scope& tasks) -> task<> {
    tasks.spawn(both());
    co_await test::settle();
    EXPECT_TRUE(jobs.try_send(42));
    tasks.request_stop();
  });
  EXPECT_EQ(received, 42);
}

TEST(when_all_results, other_exceptions_are_thrown) {
  const auto run = [] {
    static_cast<void>(test::run(when_all_results(test::fail_after(1), test::number_after(2, 1))));
  };
  EXPECT_THROW(run(), std::runtime_error);
}

}  // namespace
}  // namespace weft

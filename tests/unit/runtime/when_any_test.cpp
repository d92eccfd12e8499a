// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/when_any.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

TASK_TEST(when_any, yields_the_first_that_ends_and_its_place) {
  const auto text = []() -> task<std::unique_ptr<std::string>> { co_return std::make_unique<std::string>("text"); };
  auto first = co_await when_any(test::number_after(5, 1), text(), test::number_after(9, 2));
  EXPECT_EQ(first.index, 1);
  EXPECT_EQ(**std::get<1>(first.values), "text");
}

TASK_TEST(when_any, stops_the_others_and_waits_until_they_have_ended) {
  bool ended = false;
  const auto first = co_await when_any(test::stop_slowly(ended), test::number_after(3, 7));
  EXPECT_TRUE(ended);
  EXPECT_EQ(first.index, 1);
  EXPECT_EQ(std::get<1>(first.values), 7);
}

TASK_TEST(when_any, keeps_the_value_of_one_that_ended_before_it_heard_of_the_stop) {
  const auto first = co_await when_any(test::number_after(2, 1), test::number_after(2, 2), test::number_after(900, 3));
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(std::get<0>(first.values), 1);
  EXPECT_EQ(std::get<1>(first.values), 2) << "a message that came in the same turn would be lost";
}

TEST(when_any, throws_the_failure_of_the_first_and_waits_for_the_others) {
  bool ended = false;
  const auto run = [&] { test::run(when_any(test::stop_slowly(ended), test::fail_after(3), test::fail_after(6))); };
  EXPECT_EQ(test::words_thrown_by<std::runtime_error>(run), "after 3");
  EXPECT_TRUE(ended);
}

TASK_TEST(when_any, a_failure_does_not_lose_what_another_has_received) {
  channel<int> jobs(1);
  EXPECT_TRUE(jobs.try_send(42));
  auto first = co_await when_any(test::fail_after(0), jobs.receive());
  EXPECT_EQ(first.index, 1U);
  EXPECT_FALSE(std::get<0>(first.values));
  EXPECT_EQ(std::get<1>(first.values)->value(), 42);
  EXPECT_THROW(std::rethrow_exception(first.failure), std::runtime_error);

  std::vector<task<int>> tasks;
  tasks.push_back(test::fail_after(1));
  tasks.push_back(test::number_after(1, 7));
  tasks.push_back(test::number_after(1, 8));
  const auto several = co_await when_any(std::move(tasks));
  EXPECT_EQ(several.index, 1U);
  EXPECT_EQ(several.values[1], 7);
  EXPECT_EQ(several.values[2], 8);
  EXPECT_TRUE(several.failure);
}

TEST(when_any, a_stop_does_not_lose_what_another_thread_has_sent) {
  channel<int> a(1);
  channel<int> b(1);
  std::optional<int> received;
  const auto race = [&]() -> task<> {
    const auto first = co_await when_any(a.receive(), b.receive());
    EXPECT_EQ(first.index, 1U);
    EXPECT_TRUE(detail::is_stop(first.failure));
    received = *std::get<1>(first.values);
  };
  test::run_scope([&](scope& tasks) -> task<> {
    tasks.spawn(race());
    co_await test::settle();
    std::thread([&] { EXPECT_TRUE(b.try_send(42)); }).join();
    tasks.request_stop();
  });
  EXPECT_EQ(received, 42);
}

TEST(when_any, throws_a_failure_although_one_that_yields_nothing_has_ended_with_it) {
  const auto nothing = []() -> task<> { co_await yield(); };
  const auto run = [&] { test::run(when_any(test::fail_after(1), nothing())); };
  EXPECT_THROW(run(), std::runtime_error);
}

TASK_TEST(when_any, drops_the_failure_of_one_that_came_too_late) {
  const auto first = co_await when_any(test::number_after(1, 1), test::fail_after(2));
  EXPECT_EQ(first.index, 0);
  EXPECT_FALSE(std::get<1>(first.values));
}

TEST(when_any, of_any_number_of_tasks) {
  std::vector<task<int>> tasks;
  for (int i = 0; i < 100; ++i) tasks.push_back(test::number_after(i == 60 ? 1 : 50, i));
  const auto first = test::run(when_any(std::move(tasks)));
  EXPECT_EQ(first.index, 60);
  EXPECT_EQ(first.values[60], 60);
  EXPECT_EQ(test::code_thrown_by([] { test::run(when_any(std::vector<task<>>())); }), errc::invalid_argument);
}

TEST(when_any, is_stopped_with_all_its_tasks_at_any_point) {
  for (int turns = 0; turns < 20; ++turns) {
    bool ended = false;
    event never;
    const auto run = [&]() -> task<> {
      const auto outcome =
          co_await as_result(when_any(test::stop_slowly(ended), never.wait(), test::number_after(10, 1)));
      EXPECT_TRUE(outcome || outcome.error().code() == errc::canceled);
    };
    test::run(test::run_for_turns(turns, run()));
    EXPECT_TRUE(ended || turns == 0);
  }
}

TEST(when_any, takes_operations_and_handles_as_they_are) {
  test::simulated_executor home;
  event never;
  channel<int> numbers(1);
  test::run_scope(home, [&](scope& children) -> task<> {
    const auto first = co_await when_any(never.wait(), sleep_for(3s), numbers.receive());
    EXPECT_EQ(first.index, 1U);
    EXPECT_EQ(home.world.elapsed(), 3s);
    EXPECT_TRUE(numbers.try_send(7));
    const auto second = co_await when_any(never.wait(), numbers.receive());
    EXPECT_EQ(second.index, 1U);
    EXPECT_EQ(std::get<1>(second.values)->value(), 7);
    auto child = children.spawn(test::number_after(5, 9));
    const auto third = co_await when_any(child, sleep_for(duration::zero()), test::number_after(900, 1));
    EXPECT_EQ(third.index, 1U);
    EXPECT_EQ(co_await child, 9) << "a handle that is named can be awaited again";
    auto nap = sleep_for(2s);
    const auto fourth = co_await when_any(nap, never.wait());
    EXPECT_EQ(fourth.index, 0U);
    EXPECT_EQ(home.world.elapsed(), 5s);
    std::vector<sleep_operation> naps;
    for (int i = 5; i > 0; --i) naps.push_back(sleep_for(std::chrono::seconds(i)));
    EXPECT_EQ((co_await when_any(std::move(naps))).index, 4U);
  });
}

}  // namespace
}  // namespace weft

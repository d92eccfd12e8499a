// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/task.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

// Far more than the small stack has room for, were each a call, is a tenth as well: with sanitizers, under which each
// takes many times as long.
constexpr int million = test::sanitized ? 100'000 : 1'000'000;

task<int> one() { co_return 1; }

task<int> sum_of_ones(int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await one();
  co_return sum;
}

task<int> depth(int levels) {
  if (levels == 0) co_return 0;
  co_return 1 + co_await depth(levels - 1);
}

task<int> throw_at_depth(int levels) {
  if (levels == 0) throw std::runtime_error("from the deep");
  co_return co_await throw_at_depth(levels - 1);
}

TEST(task, a_million_ready_awaits_use_no_stack) {
  int sum = 0;
  test::on_a_small_stack([&] { sum = test::run(sum_of_ones(million)); });
  EXPECT_EQ(sum, million);
}

TEST(task, a_million_tasks_that_await_one_another_use_no_stack) {
  int levels = 0;
  test::on_a_small_stack([&] { levels = test::run(depth(million)); });
  EXPECT_EQ(levels, million);
}

TEST(task, an_exception_goes_up_a_hundred_thousand_tasks_without_stack) {
  test::on_a_small_stack([] {
    const auto run = [] { test::run(throw_at_depth(100'000)); };
    EXPECT_EQ(test::words_thrown_by<std::runtime_error>(run), "from the deep");
  });
}

struct counts_its_end : private test::immovable {
  explicit counts_its_end(int& target) noexcept : count(&target) {}
  ~counts_its_end() { ++*count; }
  int* count;
};

task<> wait_at_depth(int levels, event& gate, int& reached, int& ended) {
  const counts_its_end end(ended);
  ++reached;
  if (levels == 0) {
    co_await gate.wait();
  } else {
    co_await wait_at_depth(levels - 1, gate, reached, ended);
  }
}

task<> destroy_when_suspended(int levels, event& gate, int& reached, int& ended) {
  const sim::loose_task outermost = test::start_loosely(wait_at_depth(levels, gate, reached, ended));
  while (reached != levels + 1) co_await yield();
}

TEST(task, destroying_a_chain_of_a_million_suspended_tasks_uses_no_stack) {
  int reached = 0;
  int ended = 0;
  test::on_a_small_stack([&] {
    event gate;  // its destructor would find a waiter that had been left behind
    test::run(destroy_when_suspended(million, gate, reached, ended));
    gate.set();
  });
  EXPECT_EQ(reached, million + 1);
  EXPECT_EQ(ended, million + 1);
}

TEST(task, does_not_start_before_it_is_awaited) {
  bool started = false;
  const auto body = [&]() -> task<> {
    started = true;
    co_return;
  };
  task<> lazy = body();
  EXPECT_FALSE(started);
  test::run(std::move(lazy));
  EXPECT_TRUE(started);
  EXPECT_FALSE(lazy);
}

task<> hold(std::shared_ptr<int> owned) {
  co_await yield();
  *owned = 1;
}

TEST(task, one_that_never_started_gives_back_its_arguments) {
  const auto owned = std::make_shared<int>(0);
  {
    const task<> unstarted = hold(owned);
    EXPECT_EQ(owned.use_count(), 2);
  }
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_EQ(*owned, 0);
}

TEST(task, one_that_is_assigned_over_is_destroyed_and_the_other_runs) {
  const auto first = std::make_shared<int>(0);
  const auto second = std::make_shared<int>(0);
  task<> kept = hold(first);
  kept = hold(second);
  EXPECT_EQ(first.use_count(), 1);
  test::run(std::move(kept));
  EXPECT_EQ(*first, 0);
  EXPECT_EQ(*second, 1);
}

TEST(task, an_exception_is_rethrown_where_the_task_is_awaited) {
  const auto fails = []() -> task<int> {
    co_await yield();
    throw std::invalid_argument("no");
  };
  const auto catches = [&]() -> task<> { EXPECT_THROW(co_await fails(), std::invalid_argument); };
  test::run(catches());
  EXPECT_EQ(test::words_thrown_by<std::invalid_argument>([&] { test::run(fails()); }), "no");
}

TEST(task, yields_what_can_only_be_moved_and_references) {
  const auto make = [](int value) -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(value); };
  int target = 0;
  const auto refer = [&]() -> task<int&> { co_return target; };
  const auto body = [&]() -> task<std::unique_ptr<int>> {
    int& same = co_await refer();
    same = 7;
    co_return co_await make(target);
  };
  EXPECT_EQ(*test::run(body()), 7);
}

TEST(task, yields_what_its_braces_make) {
  const auto make = []() -> task<std::pair<int, std::string>> { co_return {1, "one"}; };
  EXPECT_EQ(test::run(make()), std::pair(1, std::string("one")));
}

}  // namespace
}  // namespace weft

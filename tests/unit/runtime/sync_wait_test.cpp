// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/sync_wait.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

task<executor*> where_am_i() {
  co_await sleep_for(1us);
  co_return executor::current();
}

task<std::unique_ptr<int>> boxed(int number) { co_return std::make_unique<int>(number); }

TEST(sync_wait, runs_the_task_on_the_executor_and_yields_its_result) {
  executor_group group({.size = 2});
  EXPECT_EQ(sync_wait(group[0], where_am_i()), &group[0]);
  EXPECT_EQ(sync_wait(group[1], where_am_i()), &group[1]);
  EXPECT_EQ(*sync_wait(group[0], boxed(7)), 7);
}

TEST(sync_wait, throws_what_the_task_throws) {
  executor_group group({.size = 2});
  EXPECT_THROW(sync_wait(group[0], test::fail_after(1)), std::runtime_error);
}

TEST(sync_wait, from_many_threads_at_once) {
  executor_group group({.size = 2});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&group, i] {
      for (int j = 0; j < 100; ++j) {
        EXPECT_EQ(*sync_wait(group[static_cast<std::size_t>(j % 2)], boxed(i * 1000 + j)), i * 1000 + j);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(sync_wait, on_the_thread_of_an_executor_is_refused) {
  executor_group group({.size = 2});
  const auto block = [&]() -> task<> {
    sync_wait(group[0], where_am_i());
    co_return;
  };
  EXPECT_EQ(test::code_thrown_by([&] { test::run(block()); }), errc::wrong_thread);
}

TEST(sync_wait, an_executor_that_has_ended_says_so) {
  executor there;
  std::thread([&] { test::run(there, yield()); }).join();
  EXPECT_EQ(test::code_thrown_by([&] { sync_wait(there, where_am_i()); }), errc::executor_stopped);
}

TEST(sync_wait, has_destroyed_the_task_when_it_returns) {
  executor_group group({.size = 2});
  const auto alive = std::make_shared<int>(0);
  const auto hold = [](std::shared_ptr<int> item) -> task<long> { co_return item.use_count(); };
  EXPECT_GT(sync_wait(group[0], hold(alive)), 1);
  EXPECT_EQ(alive.use_count(), 1);
}

}  // namespace
}  // namespace weft

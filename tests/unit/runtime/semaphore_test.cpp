// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/sync/semaphore.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

TEST(semaphore, never_gives_more_permits_than_there_are) {
  semaphore permits(3);
  std::size_t inside = 0;
  std::size_t most = 0;
  const auto worker = [&](int turns) -> task<> {
    co_await permits.acquire();
    most = std::max(most, ++inside);
    for (int i = 0; i < turns; ++i) co_await yield();
    --inside;
    permits.release();
  };
  test::run_scope([&](scope& children) {
    for (int i = 0; i < 50; ++i) children.spawn(worker(i % 7));
  });
  EXPECT_EQ(most, 3);
  EXPECT_EQ(permits.available(), 3);
}

TEST(semaphore, serves_first_who_came_first_even_if_others_want_less) {
  semaphore permits(2);
  std::vector<int> record;
  const auto taker = [&](int name, std::size_t wanted) -> task<> {
    co_await permits.acquire(wanted);
    record.push_back(name);
    co_await yield();
    permits.release(wanted);
  };
  const auto overtaker = [&]() -> task<> {
    co_await yield();
    EXPECT_FALSE(permits.try_acquire()) << "it would overtake";
  };
  test::run(when_all(taker(1, 1), taker(2, 2), taker(3, 1), overtaker()));
  EXPECT_EQ(record, (std::vector<int>{1, 2, 3}));
}

TEST(semaphore, one_that_gives_up_lets_those_behind_it_pass) {
  semaphore permits(1);
  bool passed = false;
  const auto greedy = [&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(with_timeout(1ms, permits.acquire(5))), errc::timed_out);
  };
  const auto modest = [&]() -> task<> {
    co_await permits.acquire();
    passed = true;
    permits.release();
  };
  test::run(when_all(greedy(), modest()));
  EXPECT_TRUE(passed);
  EXPECT_EQ(permits.available(), 1);
}

// Stopped after each number of turns, a task has its permits or none, and gives back what it has.
TEST(semaphore, a_stop_at_any_point_loses_no_permit) {
  for (int turns = 0; turns < 8; ++turns) {
    semaphore permits(1);
    const auto taker = [&](int patience) -> task<> {
      co_await permits.acquire();
      for (int i = 0; i < patience; ++i) co_await yield();
      permits.release();
    };
    test::run(test::run_for_turns(turns, taker(3), taker(0)));
    EXPECT_EQ(permits.available(), 1) << turns;
  }
}

TEST(semaphore, one_that_is_destroyed_while_it_waits_lets_those_behind_it_pass) {
  semaphore permits(1);
  bool passed = false;
  const auto greedy = [&]() -> task<> { co_await permits.acquire(5); };
  const auto modest = [&]() -> task<> {
    co_await permits.acquire();
    passed = true;
    permits.release();
  };
  test::run_scope([&](scope& children) -> task<> {
    const sim::loose_task waiter = test::start_loosely(greedy());
    co_await yield();
    children.spawn(modest());
    co_await yield();
    EXPECT_FALSE(passed) << "it would overtake";
  });
  EXPECT_TRUE(passed);
  EXPECT_EQ(permits.available(), 1);
}

TEST(mutex, lets_one_task_at_a_time_in_and_the_others_in_the_order_of_their_coming) {
  mutex door;
  bool inside = false;
  std::vector<int> record;
  const auto enter = [&](int name) -> task<> {
    const auto guard = co_await door.lock();
    EXPECT_TRUE(door.is_locked());
    EXPECT_FALSE(std::exchange(inside, true));
    for (int i = 0; i < 3; ++i) co_await yield();
    record.push_back(name);
    inside = false;
  };
  test::run(when_all(enter(1), enter(2), enter(3)));
  EXPECT_EQ(record, (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(door.is_locked());
}

TASK_TEST(mutex, is_unlocked_by_the_end_of_its_guard_whoever_has_it_by_then) {
  mutex door;
  auto guard = co_await door.lock();
  EXPECT_FALSE(door.try_lock());
  mutex::lock_guard other = std::move(guard);
  EXPECT_FALSE(guard);
  EXPECT_TRUE(other);
  guard = std::move(other);
  EXPECT_TRUE(door.is_locked());
  guard = mutex::lock_guard();
  EXPECT_FALSE(door.is_locked());
  EXPECT_TRUE(door.try_lock());
  EXPECT_FALSE(door.is_locked()) << "nobody kept that guard";
}

TEST(mutex, one_that_gives_up_waiting_leaves_it_to_the_next) {
  mutex door;
  int entered = 0;
  const auto impatient = [&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(with_timeout(1ms, door.lock())), errc::timed_out);
  };
  const auto patient = [&]() -> task<> {
    const auto guard = co_await door.lock();
    ++entered;
  };
  test::simulated_executor home;
  test::run_scope(home, [&](scope& children) -> task<> {
    const auto guard = co_await door.lock();
    children.spawn(impatient());
    children.spawn(patient());
    co_await sleep_for(5ms);
    EXPECT_EQ(entered, 0);
  });
  EXPECT_EQ(entered, 1);
  EXPECT_FALSE(door.is_locked());
}

TASK_TEST(mutex, that_is_held_on_another_executor_is_refused_in_words) {
  mutex one;
  executor_group group({.size = 1});
  const auto wait = [&]() -> task<> { const auto guard = co_await one.lock(); };
  {
    const auto guard = co_await one.lock();
    auto work = wait();
    EXPECT_EQ(co_await test::code_of(run_on(group[0], std::move(work))), errc::wrong_thread);
  }
  auto work = wait();
  co_await run_on(group[0], std::move(work));  // one after another is fine
  co_await wait();
}

TASK_TEST(semaphore, that_is_released_on_another_thread_while_a_task_waits_says_so) {
  semaphore permits(0);
  const auto release = [&]() -> task<> {
    co_await yield();
    EXPECT_EQ(test::code_thrown_elsewhere([&] { permits.release(); }), errc::wrong_thread);
    permits.release();
  };
  co_await when_all(permits.acquire(), release());
}

}  // namespace
}  // namespace weft

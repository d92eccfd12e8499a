// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/sync_wait.hpp>

#include <sched.h>

#include <semaphore>

#include "kit/failing_system_calls.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

TASK_TEST(run_on, runs_a_task_on_the_other_executor_and_resumes_here_with_its_value) {
  executor_group group({.size = 2});
  const auto here = std::this_thread::get_id();
  const auto make = [&](std::size_t index) -> task<std::unique_ptr<int>> {
    EXPECT_NE(std::this_thread::get_id(), here);
    EXPECT_EQ(executor::current(), &group[index]);
    co_await yield();
    co_return std::make_unique<int>(static_cast<int>(index));
  };
  for (std::size_t index = 0; index < 2; ++index) {
    auto work = make(index);
    const auto made = co_await run_on(group[index], std::move(work));
    EXPECT_EQ(*made, static_cast<int>(index));
    EXPECT_EQ(std::this_thread::get_id(), here);
  }
}

TEST(run_on, brings_an_exception_home) {
  executor_group group({.size = 1});
  EXPECT_THROW(test::run(run_on(group[0], test::fail_after(1))), std::runtime_error);
}

TASK_TEST(run_on, stops_the_task_there_and_waits_for_it) {
  executor_group group({.size = 1});
  std::atomic<bool> ended{false};
  const auto sleep = [&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(sleep_for(duration::max())), errc::canceled);
    for (int i = 0; i < 10; ++i) co_await yield();
    ended = true;
  };
  auto work = sleep();
  const result<void> outcome = co_await as_result(with_timeout(1ms, run_on(group[0], std::move(work))));
  EXPECT_TRUE(ended);
  EXPECT_TRUE(outcome) << "it took the stop for no failure";
}

TEST(run_on, stopped_before_it_begins_starts_nothing) {
  executor_group group({.size = 1});
  bool started = false;
  const auto touch = [&]() -> task<> {
    started = true;
    co_return;
  };
  test::run(test::run_for_turns(0, run_on(group[0], touch())));
  EXPECT_FALSE(started);
}

// The end over there and the stop over here cross each other.
TEST(run_on, a_stop_at_any_time_ends_it_once) {
  executor_group group({.size = 1});
  for (int turns = 0; turns < 300; ++turns) {
    const auto count = [&]() -> task<int> {
      for (int i = 0; i < turns % 7; ++i) co_await yield();
      co_return 5;
    };
    const auto child = [&]() -> task<> {
      auto work = count();
      const auto counted = co_await as_result(run_on(group[0], std::move(work)));
      EXPECT_TRUE(!counted || *counted == 5);
    };
    test::run(test::run_for_turns(turns, child()));
  }
}

TEST(run_on, keeps_the_other_executor_running_until_the_task_has_ended) {
  executor other;
  event begun;
  event go;
  channel<executor*> ready(1);
  std::atomic<bool> ended{false};
  const auto work = [&]() -> task<> {
    begun.set();
    co_await go.wait();
    ended = true;
  };
  const std::jthread thread([&] {
    other.run([&]() -> task<> {
      EXPECT_TRUE(ready.try_send(executor::current()));
      co_await begun.wait();
      go.set();
    }());
  });
  test::run([&]() -> task<> {
    const auto there = co_await ready.receive();
    auto task_there = work();
    co_await run_on(**there, std::move(task_there));
    EXPECT_TRUE(ended);
  }());
}

int usable_processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

TEST(run_on_death, of_its_waiter_while_the_task_runs_elsewhere_ends_the_program_with_words) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto destroy = [] {
    executor_group others({.size = 1});
    const auto for_ever = []() -> task<> { co_await sleep_for(duration::max()); };
    const auto wait = [&]() -> task<> {
      auto work = for_ever();
      co_await run_on(others[0], std::move(work));
    };
    test::run(test::destroyed_while_it_waits(wait()));
  };
  EXPECT_DEATH(destroy(), "a task was destroyed while it waits for a task on another executor");
}

TEST(executor_group, has_one_executor_for_each_usable_processor) {
  const executor_group group;
  EXPECT_EQ(group.size(), static_cast<std::size_t>(usable_processors()));
}

TASK_TEST(executor_group, pinned_each_stays_on_its_processor_and_the_workers_do_not) {
  executor_group group({.size = 2, .pin = true});
  const int all = usable_processors();
  const auto count = [&]() -> task<> {
    EXPECT_EQ(usable_processors(), 1);
    const int of_worker = co_await offload(usable_processors);
    EXPECT_EQ(of_worker, all) << "a worker inherits the processors of the thread that first needs it";
  };
  for (std::size_t i = 0; i < 2; ++i) {
    auto work = count();
    co_await run_on(group[i], std::move(work));
  }
}

TEST(executor_group, ends_after_what_was_posted_to_it) {
  std::atomic<int> done{0};
  {
    executor_group group({.size = 2});
    for (std::size_t i = 0; i < 2; ++i) {
      for (int n = 0; n < 100; ++n) group[i].post([&done] { ++done; });
    }
  }
  EXPECT_EQ(done, 200);
}

// A thread that cannot use its event driver, like one that may make no io_uring calls.
class refusing_driver final : public event_driver {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "refusing"; }
  void attach_thread() override { throw error(errc::not_supported, "attach this thread to the driver"); }
  void start(io_operation&) noexcept override {}
  void cancel(io_operation&) noexcept override {}
  std::size_t poll(std::size_t) noexcept override { return 0; }
  std::size_t wait(std::size_t, std::optional<duration>) noexcept override { return 0; }
  void wake() noexcept override {}
  [[nodiscard]] ssize_t try_receive(descriptor&, msghdr&) noexcept override { return -EAGAIN; }
  [[nodiscard]] int try_now(io_operation&) noexcept override { return -EAGAIN; }
};

TEST(executor_group, says_why_the_thread_of_an_executor_cannot_run_it) {
  refusing_driver driver;
  executor_group_options options{.size = 3};
  options.each.simulated_driver = &driver;
  EXPECT_TRUE(test::failed_with(test::failure_thrown_by([&] { executor_group group(options); }), errc::not_supported,
                                "attach this thread to the driver"));
}

TEST(executor_group, ends_those_that_run_when_another_cannot_be_had) {
  test::failing_system_calls calls{{.of = test::system_call::eventfd, .number = EMFILE, .after = 2}};
  executor_group_options options{.size = 3};
  options.each.system_calls = &calls;
  EXPECT_TRUE(test::failed_with(test::failure_thrown_by([&] { executor_group group(options); }),
                                std::errc::too_many_files_open, "create an eventfd"));
}

TEST(executor_group, none_is_destroyed_while_another_may_post_to_it) {
  std::vector<int> ran;
  std::binary_semaphore begun(0);
  std::optional<executor_group> group(executor_group_options{.size = 3});
  executor& first = (*group)[0];
  executor& last = (*group)[2];
  const auto note = [&](const executor& here, int number) {
    ran.push_back(executor::current() == &here ? number : -number);
  };
  const auto third = [&] { note(first, 3); };
  const auto second = [&] {
    note(last, 2);
    first.post(third);
  };
  const auto work = [&]() -> task<> {
    begun.release();
    while (!core_of(first).has_ended()) co_await yield();  // all are told to end, and that one has nothing left to do
    first.post([&] {
      note(first, 1);
      last.post(second);
    });
  };
  last.post([&] { run_in_background(*executor_core::current(), work()); });
  begun.acquire();
  group.reset();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TASK_TEST(run_on, an_executor_that_has_ended_says_so) {
  executor there;
  std::thread([&] { test::run(there, yield()); }).join();
  auto work = test::number_after(0, 1);
  EXPECT_EQ(co_await test::code_of(run_on(there, std::move(work))), errc::executor_stopped);
}

TEST(run_on, an_executor_that_is_destroyed_before_it_runs_says_so) {
  executor_group waiting({.size = 1});
  auto there = std::make_unique<executor>();
  const auto ask = [&]() -> task<> {
    auto work = test::number_after(0, 1);
    EXPECT_EQ(co_await test::code_of(run_on(*there, std::move(work))), errc::executor_stopped);
  };
  std::binary_semaphore asked(0);
  const auto tell = [&]() -> task<> {
    co_await test::settle();
    asked.release();
  };
  const std::jthread caller([&] { sync_wait(waiting[0], when_all(ask(), tell())); });
  asked.acquire();
  there.reset();
}

}  // namespace
}  // namespace weft

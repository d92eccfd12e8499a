// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/file.hpp>
#include <weft/runtime/sync/apart.hpp>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <semaphore>

#include "kit/held_workers.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

executor_options on(worker_pool& pool) { return {.workers = &pool}; }

TASK_TEST(offload, runs_on_another_thread_and_resumes_on_this_one) {
  const auto job = [] { return std::this_thread::get_id(); };
  const std::thread::id there = co_await offload(job);
  EXPECT_NE(there, std::this_thread::get_id());
  EXPECT_NE(executor::current(), nullptr);
}

TEST(offload, moves_its_result_and_lets_its_exception_through) {
  const auto make = [] { return std::make_unique<int>(7); };
  EXPECT_EQ(*test::run(offload(make)), 7);
  const auto fail = [] { throw std::runtime_error("in the worker"); };
  EXPECT_EQ(test::words_thrown_by<std::runtime_error>([&] { test::run(offload(fail)); }), "in the worker");
}

// In a child, which may have no thread more: the limit is not for root.
[[noreturn]] void open_without_threads() {
  if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
  const rlimit none{};
  ::setrlimit(RLIMIT_NPROC, &none);
  worker_pool pool(1);
  executor home(on(pool));
  const auto root = []() -> task<> {
    const auto opened = co_await as_result(file::open("/dev/null"));
    std::fputs(opened ? "open" : opened.error().what(), stderr);
  };
  home.run(root());
  ::_exit(0);  // a sanitizer that looks for leaks would need a thread
}

TEST(offload, without_a_thread_for_it_fails_with_an_error_of_ours) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child begins threads
  EXPECT_EXIT(open_without_threads(), testing::ExitedWithCode(0), "start a thread: Resource temporarily unavailable");
}

TEST(offload, takes_a_temporary_closure_that_owns_nothing) {
  int value = 0;
  int* const target = &value;
  test::run(offload([target] { *target = 1; }));
  EXPECT_EQ(value, 1);
}

TEST(offload, runs_as_many_jobs_at_once_as_the_pool_has_threads_and_no_more) {
  worker_pool pool(2);
  executor home(on(pool));
  std::barrier pair(2);  // with one thread only, nobody would pass it
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  const auto job = [&] {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    pair.arrive_and_wait();
    --running;
  };
  test::run_scope(home, [&](scope& children) {
    for (int i = 0; i < 20; ++i) children.spawn(offload(job));
  });
  EXPECT_EQ(most, 2);
}

TEST(offload, a_job_that_is_still_queued_is_withdrawn_by_a_stop) {
  worker_pool pool(1);
  executor home(on(pool));
  std::binary_semaphore release(0);
  event begun;
  executor* const here = &home;
  std::atomic<bool> ran{false};
  const auto block = [&] {
    here->post([&] { begun.set(); });
    release.acquire();
  };
  const auto never = [&] { ran = true; };
  test::run_scope(home, [&](scope& children) -> task<> {
    children.spawn(offload(block));
    co_await begun.wait();
    co_await test::run_for_turns(1, offload(never));  // ends although the only thread is taken
    release.release();
  });
  EXPECT_FALSE(ran);
}

TEST(offload, a_job_that_has_begun_runs_to_its_end_and_a_stop_waits_for_it) {
  worker_pool pool(1);
  executor home(on(pool));
  std::binary_semaphore release(0);
  event begun;
  executor* const here = &home;
  int result = 0;
  const auto job = [&] {
    here->post([&] { begun.set(); });
    release.acquire();
    return 7;
  };
  const auto child = [&]() -> task<> { result = co_await offload(job); };
  test::run_scope(home, [&](scope& children) -> task<> {
    children.spawn(child());
    co_await begun.wait();
    children.request_stop();
    co_await yield();
    EXPECT_EQ(children.size(), 1U);
    release.release();
  });
  EXPECT_EQ(result, 7);
}

TEST(offload, is_not_begun_under_a_stop_that_was_requested_before) {
  executor home;
  std::stop_source source;
  source.request_stop();
  bool ran = false;
  const auto job = [&] { ran = true; };
  const auto root = [&]() -> task<> { co_await offload(job); };
  EXPECT_EQ(test::code_thrown_by([&] { home.run(root(), source.get_token()); }), errc::canceled);
  EXPECT_FALSE(ran);
}

TEST(offload, after_one_that_was_withdrawn_the_same_can_be_awaited_again) {
  worker_pool pool(1);
  executor home(on(pool));
  std::binary_semaphore release{0};
  const auto block = [&] { release.acquire(); };
  int count = 0;
  const auto job = [&] { return ++count; };
  test::run_scope(home, [&](scope& children) -> task<> {
    auto counting = offload(job);
    EXPECT_EQ(co_await counting, 1);
    auto blocked = children.spawn(offload(block));
    co_await yield();
    co_await when_any(yield(), counting);
    EXPECT_EQ(count, 1) << "it was withdrawn";
    release.release();
    co_await blocked;
    EXPECT_EQ(co_await counting, 2);
  });
}

sim::loose_task use_on_worker(std::vector<int> numbers, int& sum) {
  const auto job = [&] {
    for (const int each : numbers) sum += each;
  };
  co_await detail::offload_for_resources(job);
}

TEST(offload, for_the_library_is_waited_for_by_a_frame_that_is_destroyed) {
  test::held_workers workers;
  executor home(on(workers));
  int sum = 0;
  const auto root = [&]() -> task<> {
    const auto waiting = use_on_worker({1, 2, 4}, sum);
    workers.hold_next_until_waited_for();
    waiting.start(home);
    while (!workers.hold_it() || !waiting.at_rest()) co_await yield();
    EXPECT_EQ(sum, 0);
  };
  home.run(root());
  EXPECT_EQ(sum, 7);
}

task<std::unique_ptr<int>> make_on_worker(int* from) {
  const auto make = [from] { return std::make_unique<int>(*from); };
  co_return co_await offload(make);
}

sim::loose_task make_apart(int& number, int& made) { made = *co_await detail::apart(make_on_worker(&number)); }

TEST(apart, a_step_goes_on_to_its_end_although_the_frame_that_waits_is_destroyed) {
  test::held_workers workers(0);
  executor home(on(workers));
  int number = 7;
  int made = 0;
  const auto root = [&]() -> task<> {
    {
      const auto waiting = make_apart(number, made);
      waiting.start(home);
      while (!workers.hold_it() || !waiting.at_rest()) co_await yield();
    }
    EXPECT_TRUE(workers.hold_it());
    workers.let_go();
  };
  home.run(root());
  EXPECT_EQ(made, 0);
}

TASK_TEST(apart, a_step_yields_its_value_or_failure_and_hears_of_a_stop) {
  event never;
  const auto yield_one = []() -> task<int> { co_return 1; };
  const auto fail = []() -> task<> {
    co_await yield();
    throw error(errc::busy, "a step");
  };
  const auto wait = [&]() -> task<> { co_await never.wait(); };
  EXPECT_EQ(co_await detail::apart(yield_one()), 1);
  EXPECT_EQ((co_await as_result(detail::apart(fail()))).error().code(), errc::busy);
  EXPECT_EQ((co_await as_result(with_timeout(duration(), detail::apart(wait())))).error().code(), errc::timed_out);
}

TEST(offload, thousands_of_small_jobs_come_home) {
  worker_pool pool(3);
  executor home(on(pool));
  std::atomic<int> done{0};
  const auto job = [&] { ++done; };
  const auto child = [&]() -> task<> {
    for (int i = 0; i < 100; ++i) co_await offload(job);
  };
  test::run_scope(home, [&](scope& children) {
    for (int i = 0; i < 50; ++i) children.spawn(child());
  });
  EXPECT_EQ(done, 5000);
}

// How many of these a worker blocks.
std::ptrdiff_t signals_blocked_by_a_worker(std::initializer_list<int> which) {
  const auto count = [which] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return std::count_if(which.begin(), which.end(), [&](int each) { return sigismember(&mask, each) == 1; });
  };
  return test::run(offload(count));
}

TEST(offload, workers_take_no_signals) { EXPECT_EQ(signals_blocked_by_a_worker({SIGTERM, SIGUSR1}), 2); }

// A fault of a thread that blocks its signal ends the process before any handler has run: no report of a sanitizer,
// none of the program's own.
TEST(offload, workers_leave_faults_to_the_handler_of_the_program) {
  EXPECT_EQ(signals_blocked_by_a_worker({SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}), 0);
}

}  // namespace
}  // namespace weft

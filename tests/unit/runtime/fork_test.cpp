// SPDX-License-Identifier: Apache-2.0
// What a child of fork(2) may do with what it has copies of.
#include <cstdlib>

#include "kit/child.hpp"
#include "kit/slow_loop.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

using test::end_of;
using test::fork_for;

[[noreturn]] int leave() { std::exit(0); }

void do_nothing() {}

task<> use_a_worker() { co_await offload(do_nothing); }

TASK_TEST(fork, a_child_that_was_forked_within_a_task_exits) {
  co_await use_a_worker();
  EXPECT_EQ(end_of(fork_for(leave)), 0);
}

TEST(fork, a_child_destroys_workers_and_executors_that_it_has_copies_of) {
  std::optional<worker_pool> workers(std::in_place, 2);
  executor_options options{.workers = &*workers};
  std::optional<executor> home(std::in_place, options);
  std::optional<executor_group> group(std::in_place, executor_group_options{.size = 2});
  home->run(use_a_worker());
  const pid_t child = fork_for([&]() -> int {
    group.reset();
    home.reset();
    workers.reset();
    std::exit(0);
  });
  EXPECT_EQ(end_of(child), 0);
}

// Another thread has handed work over and has not left the call when the child is forked: there it never will.
TEST(fork, a_child_destroys_an_executor_that_is_given_work_just_then) {
  test::slow_loop loop;
  std::optional<executor> home(std::in_place);
  core_of(*home).drive_from(&loop);
  while (core_of(*home).step() == duration::zero()) {
  }
  std::jthread other([&] { home->post(do_nothing); });
  loop.entered.acquire();
  const pid_t child = fork_for([&]() -> int {
    home.reset();
    return 0;
  });
  EXPECT_EQ(end_of(child), 0);
  loop.go_on.release();
  other.join();
  core_of(*home).drive_from(nullptr);
}

TEST(fork, a_child_of_a_process_with_threads_loses_no_news_of_its_descriptors) {
  test::run(use_a_worker());
  const pid_t child = fork_for([]() -> int {
    const auto listen = []() -> task<int> {
      test::socket_pair ends = test::unix_pair();
      std::array<std::byte, 4> room{};
      const auto send = [&]() -> task<> {
        EXPECT_EQ(::write(ends.b.fd(), room.data(), room.size()), 4);
        co_return;
      };
      const auto heard = co_await when_all(with_timeout(60s, test::receive_some(ends.a, room)), send());
      co_return std::get<0>(heard);
    };
    executor home({.policy = poll_policy::sleep, .driver = driver_choice::epoll});
    return home.run(listen());
  });
  EXPECT_EQ(end_of(child), 4);
}

// The thread sanitizer lets no child of a process with threads start one.
#ifndef WEFT_TEST_TSAN

int run_an_executor() {
  const auto job = [] { return 7; };
  return test::run(offload(job));
}

TEST(fork, a_child_has_workers_of_its_own) {
  test::run(use_a_worker());
  EXPECT_EQ(end_of(fork_for(run_an_executor)), 7);
  EXPECT_EQ(end_of(fork_for([]() -> int { std::exit(run_an_executor()); })), 7);
  test::run(use_a_worker());
}

TEST(fork, a_child_runs_no_job_of_its_parents) {
  worker_pool one(1);
  executor home({.workers = &one});
  std::binary_semaphore begun(0);
  std::binary_semaphore release(0);
  std::atomic<int> ran{0};
  const auto block = [&] {
    begun.release();
    release.acquire();
    ++ran;
  };
  const auto count = [&] { ++ran; };
  int in_child = 0;
  const auto fork_now = [&]() -> task<> {
    begun.acquire();
    // The only thread is taken, and a job waits behind it.
    in_child = end_of(fork_for([&]() -> int {
      executor mine({.workers = &one});
      mine.run(use_a_worker());
      return ran;
    }));
    release.release();
    co_return;
  };
  home.run(when_all(offload(block), offload(count), fork_now()));
  EXPECT_EQ(in_child, 0);
  EXPECT_EQ(ran, 2);
}

TEST(fork, a_child_of_a_child_has_workers_of_its_own) {
  test::run(use_a_worker());
  const pid_t child = fork_for([]() -> int {
    if (run_an_executor() != 7) return 1;
    return end_of(fork_for(run_an_executor));
  });
  EXPECT_EQ(end_of(child), 7);
}

// Workers take their pool's mutex all the time here.
TASK_TEST(fork, a_child_of_a_parent_with_busy_workers_has_workers_of_its_own) {
  for (int i = 0; i < 8; ++i) {
    const auto busy = []() -> task<> {
      for (int each = 0; each < 100; ++each) co_await offload(do_nothing);
    };
    const auto fork_meanwhile = []() -> task<> {
      co_await use_a_worker();
      EXPECT_EQ(end_of(fork_for(run_an_executor)), 7);
    };
    co_await when_all(busy(), busy(), fork_meanwhile());
  }
}

#endif

}  // namespace
}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
// What the runtime takes of memory as it ships. Sanitizers keep frames on the heap, and have an operator new of their
// own.
#include <weft/runtime/core/frame_allocator.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

using test::failed_with;
using test::number_after;

task<int> one() { co_return 1; }

task<> one_of_each(event& gate) {
  co_await one();
  co_await yield();
  co_await sleep_for(duration::zero());
  gate.set();
  co_await gate.wait();
  co_await with_timeout(std::chrono::hours(1), gate.wait());
}

task<std::size_t> allocations_of(int rounds) {
  event gate;
  const std::size_t before = test::allocations();
  for (int i = 0; i < rounds; ++i) co_await one_of_each(gate);
  co_return test::allocations() - before;
}

TEST(task, tasks_awaits_sleeps_events_and_timeouts_allocate_nothing_once_warm) {
  executor home;
  home.run(allocations_of(10));
  EXPECT_EQ(home.run(allocations_of(1000)), 0U);
}

// What this thread keeps of the frames of so many tasks that have never started.
std::size_t kept_of(std::size_t count) {
  std::vector<task<int>> tasks;
  for (std::size_t i = 0; i < count; ++i) tasks.push_back(one());
  tasks.clear();
  return detail::frame_bytes_kept();
}

TEST(task, a_thread_keeps_no_more_frames_than_it_says) {
  constexpr std::size_t more_than_are_kept = detail::most_frame_bytes_kept / 100;
  std::size_t kept = 0;
  std::thread([&] { kept = kept_of(more_than_are_kept); }).join();
  EXPECT_LE(kept, detail::most_frame_bytes_kept);
  EXPECT_GE(kept, detail::most_frame_bytes_kept / 2);
}

TEST(task, an_idle_executor_gives_frames_back) {
  const auto root = []() -> task<std::size_t> {
    const std::size_t busy = kept_of(100'000);
    EXPECT_GT(busy, detail::frame_bytes_kept_when_idle);
    co_await sleep_for(std::chrono::milliseconds(300));
    co_return detail::frame_bytes_kept();
  };
  EXPECT_LE(test::run(root()), detail::frame_bytes_kept_when_idle + 4096);  // and what has ended since
}

SCOPE_TEST(spawned, allocates_nothing_once_warm) {
  std::size_t allocated = 1;
  for (int round = 0; round < 2; ++round) {
    const std::size_t before = test::allocations();
    for (int i = 0; i < 100; ++i) {
      auto child = children.spawn(number_after(1, i));
      EXPECT_EQ(co_await child, i);
      children.spawn(number_after(0, i));
    }
    co_await yield();
    allocated = test::allocations() - before;
  }
  EXPECT_EQ(allocated, 0U);
}

TASK_TEST(scope, one_that_has_ended_takes_no_more_tasks) {
  bool ran = false;
  const auto child = [&]() -> task<> {
    ran = true;
    co_return;
  };
  scope* kept = nullptr;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    kept = &children;
    co_return;
  });
  EXPECT_TRUE(failed_with(test::failure_thrown_by([&] { kept->spawn(child()); }), errc::invalid_argument,
                          "a scope that has ended"));
  for (int i = 0; i < 3; ++i) co_await yield();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace weft

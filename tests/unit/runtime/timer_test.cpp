// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/system/timer.hpp>

#include <unistd.h>

#include <deque>
#include <random>

#include "runtime/support.hpp"

namespace weft {
namespace {

class recording_timer final : public detail::timer {
 public:
  recording_timer(int number, std::vector<int>& record) : number_(number), record_(record) {}

 private:
  void expired() noexcept override { record_.push_back(number_); }
  int number_;
  std::vector<int>& record_;
};

TEST(timer_queue, expires_in_the_order_of_the_deadlines_whatever_is_disarmed) {
  std::minstd_rand random(7);
  std::vector<int> record;
  std::vector<std::pair<time_point, int>> expected;
  std::deque<recording_timer> timers;
  detail::timer_queue queue;
  for (int i = 0; i < 1000; ++i) {
    const time_point deadline{std::chrono::milliseconds(random() % 100)};
    queue.arm(timers.emplace_back(i, record), deadline);
    expected.emplace_back(deadline, i);
  }
  for (std::size_t i = 0; i < 1000; i += 3) {
    queue.disarm(timers[i]);
    queue.disarm(timers[i]);  // once more is harmless
  }
  std::erase_if(expected, [](const auto& item) { return item.second % 3 == 0; });
  std::sort(expected.begin(), expected.end());  // equal deadlines: first armed, first expired
  while (!queue.empty()) queue.expire(time_point(1s), 64);
  ASSERT_EQ(record.size(), expected.size());
  for (std::size_t i = 0; i < record.size(); ++i) EXPECT_EQ(record[i], expected[i].second);
}

TEST(timer_queue, expires_only_what_is_due_and_no_more_than_its_budget) {
  std::vector<int> record;
  std::deque<recording_timer> timers;
  detail::timer_queue queue;
  for (int i = 0; i < 10; ++i) queue.arm(timers.emplace_back(i, record), time_point(i * 1ms));
  EXPECT_EQ(queue.expire(time_point(4ms), 3), 3U);
  EXPECT_EQ(queue.expire(time_point(4ms), 3), 2U);
  EXPECT_EQ(queue.expire(time_point(4ms), 3), 0U);
  EXPECT_EQ(queue.next_deadline(), time_point(5ms));
  for (recording_timer& item : timers) queue.disarm(item);
  EXPECT_TRUE(queue.empty());
}

std::vector<int> wake_up_order(const std::vector<duration>& times, duration& elapsed) {
  test::simulated_executor home;
  std::vector<int> record;
  const auto note_after = [&](duration time, int number) -> task<> {
    co_await sleep_for(time);
    record.push_back(number);
  };
  test::run_scope(home, [&](scope& children) {
    int number = 0;
    for (const duration time : times) children.spawn(note_after(time, number++));
  });
  elapsed = home.world.elapsed();
  return record;
}

TEST(sleep, is_no_longer_for_what_others_have_done_before_the_executor_waits) {
  test::simulated_executor home;
  auto [from, to] = test::unix_pair();
  const auto work = [&]() -> task<> {
    std::array<std::byte, 1> byte{};
    static_cast<void>(co_await test::receive_some(from, byte));
    home.world.advance(100ms);
  };
  ASSERT_EQ(::write(to.fd(), "x", 1), 1);
  home.run(when_all(sleep_for(120ms), work()));
  EXPECT_EQ(home.world.elapsed(), 120ms);
}

TEST(sleep, tasks_wake_in_the_order_of_their_virtual_times_every_time) {
  const std::vector<duration> times{3h, 1h, 2h, 1h, 0h, 30min, 2h, 1s};
  duration elapsed{};
  const std::vector<int> order = wake_up_order(times, elapsed);
  EXPECT_EQ(order, (std::vector<int>{4, 7, 5, 1, 3, 2, 6, 0}));
  EXPECT_EQ(elapsed, 3h);
  EXPECT_EQ(wake_up_order(times, elapsed), order);
}

TEST(sleep, never_ends_early_on_the_real_clock) {
  const auto root = []() -> task<duration> {
    const time_point start = executor::current()->now();
    co_await sleep_for(3ms);
    co_return executor::current()->now() - start;
  };
  EXPECT_GE(test::run(root()), 3ms);
}

TASK_TEST(sleep, until_a_deadline_that_has_passed_still_gives_the_others_a_turn) {
  co_await sleep_until(time_point::min());
  co_await sleep_for(-1s);
  co_await sleep_for(duration::min());
}

}  // namespace
}  // namespace weft

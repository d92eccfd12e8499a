// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/sync/event.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

TEST(event, resumes_all_that_wait_in_the_order_of_their_coming) {
  event gate;
  std::vector<int> record;
  const auto waiter = [&](int number) -> task<> {
    co_await gate.wait();
    record.push_back(number);
  };
  test::run_scope([&](scope& children) -> task<> {
    for (int i = 0; i < 4; ++i) children.spawn(waiter(i));
    co_await yield();
    EXPECT_TRUE(record.empty());
    gate.set();
  });
  EXPECT_EQ(record, (std::vector<int>{0, 1, 2, 3}));
}

TASK_TEST(event, lets_everybody_through_until_it_is_reset) {
  event gate;
  gate.set();
  gate.set();
  co_await gate.wait();
  co_await gate.wait();
  gate.reset();
  EXPECT_FALSE(gate.is_set());
  const result<void> waited = co_await as_result(with_timeout(1ms, gate.wait()));
  EXPECT_FALSE(waited);
}

SCOPE_TEST(event, a_waiter_that_was_set_free_goes_on_although_the_event_is_reset_at_once) {
  event gate;
  const auto waiter = children.spawn(gate.wait());
  co_await yield();
  gate.set();
  gate.reset();
  co_await waiter;
}

TEST(event, a_waiter_stopped_in_the_middle_leaves_the_others_waiting) {
  test::simulated_executor home;
  event gate;
  std::vector<int> record;
  const auto waiter = [&](int number, duration patience) -> task<> {
    const result<void> waited = co_await as_result(with_timeout(patience, gate.wait()));
    record.push_back(waited ? number : -number);
  };
  const auto open = [&]() -> task<> {
    co_await sleep_for(1s);
    gate.set();
  };
  home.run(when_all(waiter(1, 3ms), waiter(2, 1ms), waiter(3, 1h), waiter(4, 2ms), open()));
  EXPECT_EQ(record, (std::vector<int>{-2, -4, -1, 3}));
}

TEST(event, one_that_is_set_and_stopped_in_the_same_turn_resumes_its_waiter_once) {
  event gate;
  int resumed = 0;
  const auto waiter = [&]() -> task<> {
    co_await gate.wait();
    ++resumed;
  };
  test::run_scope([&](scope& children) -> task<> {
    children.spawn(waiter());
    co_await yield();
    gate.set();
    children.request_stop();
  });
  EXPECT_EQ(resumed, 1);
}

TEST(event, a_wait_that_was_stopped_can_be_awaited_again) {
  test::simulated_executor home;
  event gate;
  std::vector<int> record;
  const auto other = [&]() -> task<> {
    co_await sleep_for(1ms);
    co_await gate.wait();
    record.push_back(2);
  };
  const auto patient = [&]() -> task<> {
    auto wait = gate.wait();
    auto late = gate.wait();
    const auto first = co_await when_any(wait, late, sleep_for(5ms));
    EXPECT_EQ(first.index, 2U);
    co_await wait;
    record.push_back(1);
    co_await late;  // by now the event is set
  };
  const auto open = [&]() -> task<> {
    co_await sleep_for(1s);
    EXPECT_TRUE(record.empty());
    gate.set();
  };
  home.run(when_all(patient(), other(), open()));
  EXPECT_EQ(record, (std::vector<int>{2, 1}));
}

TASK_TEST(event, that_is_set_on_another_thread_while_a_task_waits_says_so) {
  event done;
  const auto set = [&]() -> task<> {
    co_await yield();
    EXPECT_EQ(test::code_thrown_elsewhere([&] { done.set(); }), errc::wrong_thread);
    done.set();
  };
  co_await when_all(done.wait(), set());
  std::thread([&] { done.set(); }).join();  // nobody waits
}

}  // namespace
}  // namespace weft

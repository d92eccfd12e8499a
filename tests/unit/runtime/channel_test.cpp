// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/sync/channel.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

using box = std::unique_ptr<int>;

task<> send_number(channel<box>& boxes, int number) {
  auto item = std::make_unique<int>(number);
  co_await boxes.send(std::move(item));
}

TEST(channel, hands_values_over_in_their_order_and_ends_after_the_last) {
  channel<box> boxes(3);
  const auto produce = [&]() -> task<> {
    for (int i = 0; i < 200; ++i) co_await send_number(boxes, i);
    boxes.close();
  };
  const auto consume = [&]() -> task<> {
    int expected = 0;
    while (const auto item = co_await boxes.receive()) EXPECT_EQ(**item, expected++);
    EXPECT_EQ(expected, 200);
  };
  test::run(when_all(produce(), consume()));
}

TEST(channel, lets_its_senders_wait_while_it_is_full) {
  channel<int> numbers(2);
  int sent = 0;
  const auto produce = [&]() -> task<> {
    for (int i = 0; i < 5; ++i) {
      int number = i;
      co_await numbers.send(std::move(number));
      ++sent;
    }
  };
  test::run_scope([&](scope& children) -> task<> {
    children.spawn(produce());
    co_await test::settle();
    EXPECT_EQ(sent, 2);
    EXPECT_EQ(numbers.size(), 2);
    for (int i = 0; i < 5; ++i) {
      const auto number = co_await numbers.receive();
      EXPECT_EQ(number, i);
    }
  });
  EXPECT_EQ(sent, 5);
}

TASK_TEST(channel, a_sender_that_is_stopped_still_has_its_value) {
  channel<box> boxes(1);
  auto first = std::make_unique<int>(1);
  co_await boxes.send(std::move(first));
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(co_await test::code_of(with_timeout(1ms, boxes.send(std::move(second)))), errc::timed_out);
  EXPECT_TRUE(second);
  EXPECT_FALSE(boxes.try_send(std::move(second)));
  EXPECT_TRUE(second);
  const auto received = co_await boxes.receive();
  EXPECT_EQ(**received, 1);
  EXPECT_TRUE(boxes.try_send(std::move(second)));
  EXPECT_FALSE(second);
}

TASK_TEST(channel, that_is_full_may_let_the_oldest_value_go) {
  channel<box> boxes(2);
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(boxes.force_send(std::make_unique<int>(i)));
  EXPECT_FALSE(boxes.is_closed());
  for (const int kept : {3, 4}) {
    const auto received = co_await boxes.receive();
    EXPECT_EQ(**received, kept);
  }
  boxes.close();
  EXPECT_TRUE(boxes.is_closed());
  auto late = std::make_unique<int>(5);
  EXPECT_FALSE(boxes.force_send(std::move(late)));
  EXPECT_TRUE(late);
}

TASK_TEST(channel, whose_only_value_is_on_its_way_to_a_receiver_may_let_it_go_for_a_newer_one) {
  channel<int> numbers(1);
  int received = 0;
  const auto receive = [&]() -> task<> { received = (co_await numbers.receive()).value(); };
  const auto send = [&]() -> task<> {
    co_await yield();
    EXPECT_TRUE(numbers.force_send(1));
    EXPECT_TRUE(numbers.force_send(2));
  };
  co_await when_all(receive(), send());
  EXPECT_EQ(received, 2);
  EXPECT_EQ(numbers.size(), 0u);
}

TEST(channel, closed_it_yields_what_was_sent_and_refuses_more) {
  channel<int> numbers(2);
  const auto late = [&](int number) -> task<> {
    EXPECT_EQ(co_await test::code_of(numbers.send(std::move(number))), errc::closed);
  };
  test::run_scope([&](scope& children) -> task<> {
    EXPECT_TRUE(numbers.try_send(1));
    EXPECT_TRUE(numbers.try_send(2));
    children.spawn(late(3));  // it waits for room
    co_await yield();
    numbers.close();
    numbers.close();
    children.spawn(late(4));
    for (int i = 1; i <= 2; ++i) {
      const auto number = co_await numbers.receive();
      EXPECT_EQ(number, i);
    }
    const auto end = co_await numbers.receive();
    EXPECT_FALSE(end);
    EXPECT_FALSE(numbers.try_receive());
  });
}

TEST(channel, closing_ends_all_that_wait_to_receive) {
  channel<int> numbers(1);
  int ended = 0;
  const auto consume = [&]() -> task<> {
    const auto number = co_await numbers.receive();
    EXPECT_FALSE(number);
    ++ended;
  };
  test::run_scope([&](scope& children) -> task<> {
    for (int i = 0; i < 5; ++i) children.spawn(consume());
    co_await yield();
    numbers.close();
  });
  EXPECT_EQ(ended, 5);
}

// Each number of turns after which the receiver is stopped: the value is received, or still there.
TEST(channel, a_stop_at_any_point_loses_no_value) {
  for (int turns = 0; turns < 8; ++turns) {
    channel<int> numbers(1);
    std::optional<int> received;
    const auto consume = [&]() -> task<> { received = co_await numbers.receive(); };
    const auto produce = [&]() -> task<> {
      for (int i = 0; i < 3; ++i) co_await yield();
      EXPECT_TRUE(numbers.try_send(7));
    };
    test::run(when_all(produce(), test::run_for_turns(turns, consume())));
    const auto left = numbers.try_receive();
    EXPECT_TRUE(received.has_value() != left.has_value()) << turns;
  }
}

// Destroys what waits for the channel, then uses that as if it had never been there.
task<> destroy_what_waits(channel<box>& boxes, task<> waits) {
  co_await test::destroyed_while_it_waits(std::move(waits));
  while (boxes.try_receive()) continue;
  EXPECT_TRUE(boxes.try_send(std::make_unique<int>(7)));
  EXPECT_EQ(boxes.size(), 1);
  EXPECT_EQ(**boxes.try_receive(), 7);
}

TEST(channel, forgets_a_receiver_that_is_destroyed) {
  channel<box> boxes(1);
  const auto receive = [&]() -> task<> { static_cast<void>(co_await boxes.receive()); };
  test::run(destroy_what_waits(boxes, receive()));
}

TEST(channel, forgets_a_sender_that_is_destroyed) {
  channel<box> boxes(1);
  ASSERT_TRUE(boxes.try_send(std::make_unique<int>(1)));
  test::run(destroy_what_waits(boxes, send_number(boxes, 2)));
}

// ---- a wake-up is in the executor's mailbox, and whom it is for is destroyed

// Runs `wake` on another thread while `waits` does, and destroys that before it knows.
template <class Wake>
task<> destroy_when_woken(task<> waits, const Wake& wake) {
  const sim::loose_task waiter = test::start_loosely(std::move(waits));
  co_await test::settle();
  std::thread(wake).join();
}

TASK_TEST(channel, gives_a_value_on_its_way_to_a_receiver_that_is_destroyed_to_the_next_in_its_place) {
  channel<box> boxes(2);
  const auto receive = [&]() -> task<> { static_cast<void>(co_await boxes.receive()); };
  const auto send = [&] {
    for (int i = 1; i <= 2; ++i) EXPECT_TRUE(boxes.try_send(std::make_unique<int>(i)));
    EXPECT_FALSE(boxes.try_send(std::make_unique<int>(3))) << "it has no place for what comes back";
    EXPECT_EQ(boxes.size(), 1);
  };
  co_await destroy_when_woken(receive(), send);
  EXPECT_EQ(boxes.size(), 2);
  for (int i = 1; i <= 2; ++i) {
    const auto item = co_await boxes.receive();
    EXPECT_EQ(**item, i);
  }
}

TEST(channel, gives_a_value_on_its_way_to_a_receiver_that_is_destroyed_to_one_that_waits_too) {
  channel<box> boxes(1);
  int received = 0;
  const auto receive = [&]() -> task<> {
    const auto item = co_await boxes.receive();
    received = **item;
  };
  const auto send = [&] { EXPECT_TRUE(boxes.try_send(std::make_unique<int>(7))); };
  test::run_scope([&](scope& children) -> task<> {
    const sim::loose_task first = test::start_loosely(receive());
    co_await yield();
    children.spawn(receive());
    co_await test::settle();
    std::thread(send).join();
  });
  EXPECT_EQ(received, 7);
}

TEST(channel, tells_of_its_end_only_once_no_value_can_come_from_a_receiver_that_is_destroyed) {
  channel<box> boxes(1);
  int received = 0;
  int ended = 0;
  const auto receive = [&]() -> task<> {
    const auto item = co_await boxes.receive();
    item ? received += **item : ++ended;
  };
  test::run_scope([&](scope& children) -> task<> {
    const sim::loose_task first = test::start_loosely(receive());
    co_await yield();
    for (int i = 0; i < 2; ++i) children.spawn(receive());
    co_await test::settle();
    const auto send = [&] {
      EXPECT_TRUE(boxes.try_send(std::make_unique<int>(7)));
      boxes.close();
    };
    std::thread(send).join();
    children.spawn(receive());
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(boxes.try_receive());
  });
  EXPECT_EQ(received, 7);
  EXPECT_EQ(ended, 2);
}

TEST(channel, has_what_a_sender_has_sent_that_is_destroyed_before_it_knows) {
  channel<box> boxes(1);
  EXPECT_TRUE(boxes.try_send(std::make_unique<int>(1)));
  const auto receive = [&] { EXPECT_EQ(**boxes.try_receive(), 1); };
  test::run(destroy_when_woken(send_number(boxes, 2), receive));
  EXPECT_EQ(**boxes.try_receive(), 2);
}

TEST(channel, may_end_while_those_that_wait_are_destroyed_before_they_know) {
  for (const bool sends : {false, true}) {
    channel<box> boxes(1);
    if (sends) {
      EXPECT_TRUE(boxes.try_send(std::make_unique<int>(1)));
    }
    const auto receive = [&]() -> task<> { static_cast<void>(co_await boxes.receive()); };
    test::run(destroy_when_woken(sends ? send_number(boxes, 2) : receive(), [&] { boxes.close(); }));
    EXPECT_EQ(boxes.size(), sends ? 1 : 0);
  }
}

// With values always at hand nobody is ever suspended; others must have their turn all the same.
TEST(channel, does_not_starve_other_tasks_of_its_executor) {
  channel<int> numbers(1);
  bool stop = false;
  int exchanged = 0;
  const auto talk_to_oneself = [&]() -> task<> {
    while (!stop) {
      int number = exchanged++;
      co_await numbers.send(std::move(number));
      static_cast<void>(co_await numbers.receive());
    }
  };
  const auto end = [&]() -> task<> {
    co_await yield();
    stop = true;
  };
  test::run(when_all(talk_to_oneself(), end()));
  EXPECT_LT(exchanged, 1000);
}

// ---- across executors

TEST(channel_threads, carries_every_value_once_from_many_executors_to_many) {
  constexpr int producers = 3;
  constexpr int consumers = 3;
  constexpr std::uint64_t each = 3000;
  channel<std::uint64_t> numbers(4);
  std::atomic<int> producing{producers};
  std::atomic<std::uint64_t> sum{0};
  std::atomic<std::uint64_t> count{0};
  const auto produce = [&](std::uint64_t name) -> task<> {
    for (std::uint64_t i = 0; i < each; ++i) {
      std::uint64_t number = name * each + i;
      co_await numbers.send(std::move(number));
    }
    if (--producing == 0) numbers.close();
  };
  const auto consume = [&]() -> task<> {
    std::vector<std::uint64_t> last(producers, 0);
    while (const auto number = co_await numbers.receive()) {
      const std::uint64_t from = *number / each;
      EXPECT_LE(last[from], *number) << "what one sends stays in its order";
      last[from] = *number;
      sum += *number;
      ++count;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < producers; ++i) threads.emplace_back([&, i] { test::run(produce(i)); });
    for (int i = 0; i < consumers; ++i) threads.emplace_back([&] { test::run(consume()); });
  }
  constexpr std::uint64_t total = producers * each;
  EXPECT_EQ(count, total);
  EXPECT_EQ(sum, total * (total - 1) / 2);
}

TEST(channel_threads, loses_nothing_while_those_that_wait_are_stopped_by_their_own) {
  constexpr std::uint64_t total = 2000;
  channel<std::uint64_t> numbers(1);
  std::uint64_t received = 0;
  // Every other one has all the time that it needs: on a machine that is slow enough, two that never wait longer than
  // 20 us never meet.
  const auto patience = [](int attempt) -> duration { return attempt % 2 == 0 ? duration(20us) : duration(1h); };
  const auto produce = [&]() -> task<> {
    int attempt = 0;
    for (std::uint64_t number = 0; number < total;) {
      std::uint64_t copy = number;
      const duration limit = patience(attempt++);
      const result<void> sent = co_await as_result(with_timeout(limit, numbers.send(std::move(copy))));
      if (sent) ++number;
    }
    numbers.close();
  };
  const auto consume = [&]() -> task<> {
    for (int attempt = 0;;) {
      const duration limit = patience(attempt++);
      const auto number = co_await as_result(with_timeout(limit, numbers.receive()));
      if (!number) continue;
      if (!*number) break;
      EXPECT_EQ(**number, received++);
    }
  };
  std::thread producer([&] { test::run(produce()); });
  test::run(consume());
  producer.join();
  EXPECT_EQ(received, total);
}

TEST(channel_threads, loses_nothing_while_those_that_wait_are_destroyed_at_any_time) {
  // A box goes back hundreds of times from receivers that are woken and destroyed, or a few times: as the threads run.
  constexpr int least_boxes = 200;
  constexpr int least_rounds = 50'000;
  channel<box> boxes(2);
  std::atomic<int> rounds{0};
  std::atomic<int> total{-1};  // not known yet
  std::atomic<int> received{0};
  std::atomic<std::int64_t> sum{0};
  const auto consume = [&](int seed) -> task<> {
    const auto receive = [&]() -> sim::loose_task {
      const auto item = co_await boxes.receive();
      sum += **item;
      ++received;
    };
    for (int round = seed; received != total; ++round, ++rounds) {
      const sim::loose_task one = receive();
      const sim::loose_task other = receive();
      one.start(*executor::current());
      other.start(*executor::current());
      for (int turns = round % 5; turns >= 0; --turns) co_await yield();
      while (!one.at_rest() || !other.at_rest()) co_await yield();
    }
  };
  const auto produce = [&]() -> task<> {
    box item;
    const auto send = [&]() -> sim::loose_task { co_await boxes.send(std::move(item)); };
    int number = 0;
    while (number < least_boxes || rounds < least_rounds) {
      item = std::make_unique<int>(++number);
      while (item != nullptr) {
        const sim::loose_task one = send();
        one.start(*executor::current());
        co_await yield();
        while (!one.at_rest()) co_await yield();
      }
    }
    total = number;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&, i] { test::run(consume(i)); });
  test::run(produce());
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, std::int64_t{total} * (total + 1) / 2);
  EXPECT_EQ(boxes.size(), 0);
}

TASK_TEST(channel, a_receive_that_is_awaited_again_after_the_last_value_finds_the_end) {
  channel<int> numbers(1);
  auto next = numbers.receive();
  EXPECT_TRUE(numbers.try_send(1));
  EXPECT_EQ(co_await next, 1);
  numbers.close();
  EXPECT_EQ(co_await next, std::nullopt);
}

TEST(channel_threads, takes_values_and_its_end_from_threads_without_an_executor) {
  channel<int> numbers(1);
  const auto consume = [&]() -> task<> {
    int expected = 0;
    while (const auto number = co_await numbers.receive()) EXPECT_EQ(*number, expected++);
    EXPECT_EQ(expected, 100);
  };
  const std::jthread producer([&] {
    for (int i = 0; i < 100; ++i) {
      while (!numbers.try_send(int(i))) std::this_thread::yield();
    }
    numbers.close();
  });
  test::run(consume());
}

}  // namespace
}  // namespace weft

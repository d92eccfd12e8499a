// SPDX-License-Identifier: Apache-2.0
#include "../../sim/loose_task.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::counting_memory;
using test::recording_domain;

using test::kib;

class pool_threads : public ::testing::Test {
 protected:
  pool_options small() {
    return {.max_bytes = 256 * kib, .arena_bytes = 64 * kib, .huge_pages = false, .system_calls = &memory};
  }

  counting_memory memory;
  std::shared_ptr<recording_domain> domain = std::make_shared<recording_domain>();
};

// An executor on a thread, whose task ends when as many buffers as it expects have come from elsewhere.
struct peer {
  executor home;
  std::size_t expected = 0;
  std::size_t received = 0;
  event complete;

  void take(const buffer& item) {
    const auto first = item.bytes().front();
    const auto last = item.bytes().back();
    EXPECT_EQ(first, last) << "another one's buffer";
    if (++received == expected) complete.set();
  }
};

task<> produce(pool& source, peer& to, std::size_t count, unsigned seed) {
  std::minstd_rand random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    buffer item =
        co_await source.allocate(1 + random() % (12 * kib), random() % 2 == 0 ? budget::send : budget::receive);
    std::memset(item.data(), static_cast<int>(i), item.size());
    to.home.post([&to, item = std::move(item)] { to.take(item); });
  }
}

TEST_F(pool_threads, buffers_freed_on_another_executor_come_back_to_whoever_waits) {
  constexpr std::size_t count = 3000;
  pool source(domain, small());
  peer left;
  peer right;
  left.expected = right.expected = count;
  const auto live = [&](peer& self, peer& other, unsigned seed) {
    const auto body = [&]() -> task<> {
      co_await produce(source, other, count, seed);
      co_await self.complete.wait();
    };
    self.home.run(body());
  };
  std::thread thread([&] { live(right, left, 2); });
  live(left, right, 1);
  thread.join();
  EXPECT_EQ(left.received, count);
  EXPECT_EQ(right.received, count);
  EXPECT_LE(memory.most_mapped, 256 * kib);
}

TEST_F(pool_threads, what_one_executor_keeps_at_hand_is_given_to_another_that_waits) {
  pool source(domain, small());
  std::latch cached(1);
  std::binary_semaphore done(0);
  const std::jthread hoarder([&] {
    test::run([&]() -> task<> {
      { const buffer one = co_await source.allocate(1 * kib); }
      EXPECT_GT(source.statistics().send.cached_bytes, 0U);
      cached.count_down();
      const auto wait = [&] { done.acquire(); };
      co_await offload(wait);  // the executor sleeps meanwhile
    });
  });
  cached.wait();
  test::run([&]() -> task<> {
    const buffer everything = co_await source.allocate(source.max_buffer_bytes());
    EXPECT_EQ(everything.size(), 128 * kib);
  });
  done.release();
}

TEST_F(pool_threads, waiters_on_many_executors_are_served_canceled_and_freed_without_loss) {
  constexpr unsigned threads = 4;
  pool source(domain, small());
  std::vector<std::thread> running;
  for (unsigned seed = 1; seed <= threads; ++seed) {
    running.emplace_back([&, seed] {
      const auto client = [&](unsigned own) -> task<> {
        std::minstd_rand random(own);
        for (int round = 0; round < 200; ++round) {
          try {
            const auto patience = std::chrono::microseconds(random() % 200);
            const buffer item = co_await with_timeout(patience, source.allocate(1 + random() % (60 * kib)));
            item.bytes().front() = item.bytes().back() = std::byte{1};
            if (random() % 2 == 0) co_await yield();
          } catch (const error& failure) {
            EXPECT_EQ(failure.code(), errc::timed_out) << failure.what();
          }
        }
      };
      std::vector<task<>> clients;
      for (unsigned i = 0; i < 4; ++i) clients.push_back(client(seed * 10 + i));
      test::run([&] { return when_all(std::move(clients)); });
    });
  }
  for (std::thread& each : running) each.join();
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
  EXPECT_EQ(source.statistics().send.waiting, 0U);
  EXPECT_LE(memory.most_mapped, 256 * kib);
}

sim::loose_task allocate_and_free(pool& source, std::size_t bytes, int& received) {
  const buffer item = co_await source.allocate(bytes);
  item.bytes().front() = item.bytes().back() = std::byte{1};
  ++received;
  co_await yield();
}

TEST_F(pool_threads, tasks_may_be_destroyed_while_other_threads_serve_them) {
  pool source(domain, small());
  const auto live = [&](unsigned seed) {
    executor home;
    home.run([&]() -> task<> {
      std::minstd_rand random(seed);
      int received = 0;
      while (received < 500) {
        const sim::loose_task one = allocate_and_free(source, 1 + random() % (100 * kib), received);
        const sim::loose_task other = allocate_and_free(source, 1 + random() % (100 * kib), received);
        one.start(home);
        other.start(home);
        for (auto turns = random() % 20; turns > 0; --turns) co_await yield();
        while (!one.at_rest() || !other.at_rest()) co_await yield();
      }
    }());
  };
  std::thread elsewhere(live, 1);
  live(2);
  elsewhere.join();
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
  EXPECT_EQ(source.statistics().send.waiting, 0U);
}

// The first in the queue gives up, and its executor has nothing more to do with the pool.
TEST_F(pool_threads, an_arena_is_tried_again_for_a_waiter_on_another_executor) {
  pool source(domain, small());
  std::latch first_has_gone(1);
  std::binary_semaphore both_wait(0);
  const auto until = [&](auto condition) -> task<> {
    while (!condition(source.statistics())) co_await yield();
  };
  std::thread elsewhere([&] {
    test::run([&]() -> task<> {
      std::vector<buffer> held;
      for (int i = 0; i < 3; ++i) held.push_back(co_await source.allocate(16 * kib));
      memory.failure = ENOMEM;
      held.push_back(co_await source.allocate(16 * kib));
      int received = 0;
      {
        const sim::loose_task first = allocate_and_free(source, 16 * kib, received);
        first.start(*executor::current());
        const auto one_waits = [](const pool_statistics& now) { return now.send.waiting == 1 && now.failures > 2; };
        co_await until(one_waits);
        both_wait.release();
        const auto two_wait = [](const pool_statistics& now) { return now.send.waiting == 2; };
        co_await until(two_wait);
        while (!first.at_rest()) co_await yield();
      }
      EXPECT_EQ(received, 0);
      const auto wait = [&] { first_has_gone.wait(); };
      co_await offload(wait);
    });
  });
  both_wait.acquire();
  test::run([&]() -> task<> {
    const auto heal = [&]() -> task<> {
      const auto one_waits = [](const pool_statistics& now) { return now.send.waiting == 1; };
      co_await until(one_waits);
      const auto more = [now = source.statistics().failures](const pool_statistics& later) {
        return later.failures > now + 2;
      };
      co_await until(more);
      memory.failure = 0;
    };
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(heal());
      const buffer got = co_await source.allocate(16 * kib);
      EXPECT_TRUE(got);
    });
  });
  first_has_gone.count_down();
  elsewhere.join();
}

TEST_F(pool_threads, the_pool_may_go_while_other_executors_still_free_its_buffers) {
  for (int round = 0; round < 20; ++round) {
    auto source = std::make_unique<pool>(domain, small());
    std::latch ready(2);
    std::latch gone(1);
    const auto live = [&]() -> task<> {
      std::vector<buffer> held;
      for (int i = 0; i < 10; ++i) held.push_back(co_await source->allocate(2 * kib));
      held.resize(5);
      ready.count_down();
      const auto wait = [&] { gone.wait(); };
      if (held.size() % 2 == 1) co_await offload(wait);
    };
    {
      const std::jthread one([&] { test::run(live); });
      const std::jthread two([&] { test::run(live); });
      ready.wait();
      source.reset();
      gone.count_down();
    }
    EXPECT_EQ(memory.mapped, 0U);
  }
}

// As when an operation that was stopped still pins what its task has given away.
TEST_F(pool_threads, a_buffer_that_is_pinned_may_be_moved_to_another_thread_and_dropped_there) {
  constexpr std::size_t buffers = 100;
  pool source(domain, small());
  for (int round = 0; round < 10; ++round) {
    test::run([&]() -> task<> {
      std::vector<buffer> moved;
      std::vector<pin> pins;
      for (std::size_t i = 0; i < buffers; ++i) {
        moved.push_back(co_await source.allocate(64));
        pins.push_back(i % 2 == 0 ? pin::share(moved.back()).value() : pin::exclusive(moved.back()).value());
        if (i % 4 == 0) pins.push_back(pins.back().another());
      }
      std::latch both(2);
      std::thread other([&] {
        both.arrive_and_wait();
        for (buffer& item : moved) item = buffer();
      });
      both.arrive_and_wait();
      for (pin& item : pins) item.reset();
      other.join();
      EXPECT_EQ(source.statistics().send.in_use_bytes, 0u);
    });
  }
}

}  // namespace
}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
// Registrations that are submitted, and end as events: what fi_mr(3) says of FI_REG_MR, and what it leaves open.
#include <weft/mr/porting/porting.hpp>

#include "../../sim/loose_task.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using namespace std::chrono_literals;
using test::recording_domain;

class event_queues : public ::testing::Test {
 protected:
  event_queues() {
    domain->while_registering = [this] {
      if (!gated) return;
      entered.release();
      gate.acquire();
    };
  }

  [[nodiscard]] executor_options task_options() { return {.workers = &workers}; }
  template <class Body>
  void run(Body&& body) {
    test::run(std::forward<Body>(body), task_options());
  }
  porting::pending_region submit(porting::event_queue& queue, void* context = nullptr) {
    return porting::submit(*domain, memory, {.usage = usage::write_dst}, queue, context);
  }
  /// The next event says so.
  static task<> expect_failure(porting::event_queue& queue, errc why, void* context = nullptr) {
    const auto event = co_await queue.next();
    EXPECT_EQ(event.context, context);
    EXPECT_FALSE(event.outcome);
    EXPECT_EQ(event.outcome.error().code(), why);
  }
  /// Nothing is left of any test, nor was there more than it says.
  void TearDown() override {
    EXPECT_EQ(domain->registered, domain->deregistered);
    EXPECT_EQ(domain->registered, in_all.value_or(domain->registered));
  }

  std::array<std::byte, 64> memory{};
  std::shared_ptr<recording_domain> domain = std::make_shared<recording_domain>();
  std::optional<int> in_all;  // registrations
  std::atomic<bool> gated{false};
  std::counting_semaphore<> entered{0};  // registrations that a worker has begun, while gated
  std::counting_semaphore<> gate{0};     // lets one of them go on
  worker_pool workers{1};                // first to go: its jobs use the rest
};

TEST_F(event_queues, yield_each_registration_once_with_its_context) {
  constexpr std::size_t many = 2000;
  std::vector<int> contexts(many);
  run([&]() -> task<> {
    porting::event_queue queue;
    std::vector<porting::pending_region> pending;
    for (int& context : contexts) pending.push_back(submit(queue, &context));
    for (std::size_t i = 0; i < many; ++i) {
      const auto event = co_await queue.next();
      EXPECT_TRUE(event.outcome);
      EXPECT_EQ(event.outcome->bytes().data(), memory.data());
      ++*static_cast<int*>(event.context);
    }
    EXPECT_EQ(queue.size(), 0);
  });
  EXPECT_EQ(contexts, std::vector<int>(many, 1));
}

TASK_TEST_F(event_queues, have_the_work_done_on_a_worker) {
  porting::event_queue queue;
  const auto pending = submit(queue);
  const auto event = co_await queue.next();
  EXPECT_NE(domain->last_registration, std::this_thread::get_id());
}

TASK_TEST_F(event_queues, give_no_key_before_the_registration_is_complete) {
  gated = true;
  porting::event_queue queue;
  const auto pending = submit(queue);
  entered.acquire();
  EXPECT_FALSE(pending.is_complete());
  EXPECT_EQ(test::code_thrown_by([&] { return pending.key(); }), errc::key_not_available);
  gate.release();
  const auto event = co_await queue.next();
  EXPECT_TRUE(pending.is_complete());
  EXPECT_EQ(pending.key(), event.outcome->remote().key());
}

TASK_TEST_F(event_queues, give_a_key_once_the_event_can_be_read) {
  porting::event_queue queue;
  const auto pending = submit(queue);
  while (queue.size() == 0) co_await yield();
  EXPECT_TRUE(pending.is_complete());
  const std::uint64_t key = pending.key();
  EXPECT_EQ(queue.try_next()->outcome->remote().key(), key);
}

TASK_TEST_F(event_queues, give_no_key_of_memory_that_lets_no_peer_in) {
  porting::event_queue queue;
  const auto pending = porting::submit(*domain, memory, {.usage = usage::send}, queue, nullptr);
  const auto event = co_await queue.next();
  EXPECT_EQ(test::code_thrown_by([&] { return pending.key(); }), errc::access_denied);
}

TASK_TEST_F(event_queues, get_no_event_for_what_is_refused_at_once) {
  in_all = 1;
  porting::event_queue queue;
  const auto refuse = [&](std::span<std::byte> range, registration_options wanted) {
    return test::code_thrown_by([&] { return porting::submit(*domain, range, wanted, queue, nullptr); });
  };
  EXPECT_EQ(refuse({}, {.usage = usage::send}), errc::zero_length);
  EXPECT_EQ(refuse(memory, {.usage = static_cast<usage>(1U << 15)}), errc::unknown_usage);
  // The next event is that of the one registration that there was.
  const auto pending = submit(queue, &queue);
  const auto event = co_await queue.next();
  EXPECT_EQ(event.context, &queue);
  EXPECT_EQ(queue.size(), 0);
}

TASK_TEST_F(event_queues, say_why_a_registration_has_failed) {
  domain->refuse = true;
  porting::event_queue queue;
  const auto pending = submit(queue, &queue);
  co_await expect_failure(queue, errc::no_memory, &queue);
  EXPECT_EQ(test::code_thrown_by([&] { return pending.key(); }), errc::no_memory);
}

TASK_TEST_F(event_queues, free_what_they_own_once_it_could_not_be_registered) {
  domain->refuse = true;
  auto owned = std::make_shared<std::array<std::byte, 64>>();
  const std::weak_ptr<std::array<std::byte, 64>> watched = owned;
  porting::event_queue queue;
  const auto pending = porting::submit(*domain, std::move(owned), {.usage = usage::write_dst}, queue, nullptr);
  co_await expect_failure(queue, errc::no_memory);
  EXPECT_TRUE(watched.expired());
}

TASK_TEST_F(event_queues, survive_a_domain_that_runs_out_of_memory) {
  domain->while_registering = [] { throw std::bad_alloc(); };
  porting::event_queue queue;
  const auto pending = submit(queue);
  co_await expect_failure(queue, errc::no_memory);
}

TASK_TEST_F(event_queues, cancel_one_whose_handle_goes_before_a_worker_begins) {
  in_all = 1;
  gated = true;
  porting::event_queue queue;
  const auto first = submit(queue);
  entered.acquire();  // the only worker is busy
  submit(queue, &queue);
  co_await expect_failure(queue, errc::canceled, &queue);
  EXPECT_EQ(domain->registered, 0);
  gate.release();
  const auto other = co_await queue.next();
  EXPECT_TRUE(other.outcome);
}

TASK_TEST_F(event_queues, cancel_one_whose_handle_goes_while_it_is_registered) {
  gated = true;
  porting::event_queue queue;
  {
    const auto pending = submit(queue, &queue);
    entered.acquire();
  }
  gate.release();
  co_await expect_failure(queue, errc::canceled, &queue);
  EXPECT_EQ(domain->registered, 1);
  EXPECT_EQ(domain->deregistered, 1) << "the memory may be given back now";
  EXPECT_EQ(queue.size(), 0);
}

TASK_TEST_F(event_queues, cancel_one_whose_handle_goes_before_its_event_is_read) {
  porting::event_queue queue;
  {
    const auto pending = submit(queue, &queue);
    while (!pending.is_complete()) co_await yield();
  }
  co_await expect_failure(queue, errc::canceled, &queue);
  EXPECT_EQ(domain->deregistered, 1);
  EXPECT_NE(domain->last_deregistration, std::this_thread::get_id());
  EXPECT_EQ(queue.size(), 0);
}

TASK_TEST_F(event_queues, leave_a_failure_as_it_is_when_the_handle_goes) {
  domain->refuse = true;
  porting::event_queue queue;
  {
    const auto pending = submit(queue);
    while (!pending.is_complete()) co_await yield();
  }
  co_await expect_failure(queue, errc::no_memory);
  EXPECT_EQ(queue.size(), 0);
}

TASK_TEST_F(event_queues, give_the_region_to_whoever_reads_the_event) {
  porting::event_queue queue;
  std::optional<porting::pending_region> pending(submit(queue));
  auto event = co_await queue.next();
  pending.reset();
  EXPECT_EQ(domain->deregistered, 0);
  region made = std::move(*event.outcome);
  co_await made.release();
  EXPECT_EQ(domain->deregistered, 1);
}

TASK_TEST_F(event_queues, keep_memory_that_they_were_given_until_it_is_deregistered) {
  auto owned = std::make_shared<std::array<std::byte, 64>>();
  const std::weak_ptr<std::array<std::byte, 64>> watch = owned;
  porting::event_queue queue;
  bool alive = false;
  domain->while_deregistering = [&] { alive = !watch.expired(); };
  { const auto pending = porting::submit(*domain, std::move(owned), {.usage = usage::write_dst}, queue, nullptr); }
  co_await expect_failure(queue, errc::canceled);
  EXPECT_TRUE(alive || domain->registered == 0);
  EXPECT_TRUE(watch.expired());
}

TEST_F(event_queues, lose_no_event_to_a_stop) {
  for (int turns = 0; turns < 6; ++turns) {
    gated = true;
    run([&]() -> task<> {
      porting::event_queue queue;
      std::size_t received = 0;
      const auto wait = [&]() -> task<> {
        const auto event = co_await queue.next();
        ++received;
      };
      const auto pending = submit(queue);
      entered.acquire();
      co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
        children.spawn(wait());
        co_await yield();
        gate.release();
        for (int i = 0; i < turns; ++i) co_await yield();
        children.request_stop();
      });
      while (!pending.is_complete()) co_await yield();
      EXPECT_EQ(received + queue.size(), 1u) << turns;
      while (received == 0) co_await wait();  // before its handle goes, which would have a worker undo it
    });
  }
}

sim::loose_task read_loosely(porting::event_queue& queue, std::vector<void*>& contexts) {
  const auto event = co_await queue.next();
  contexts.push_back(event.context);
}

task<> until_waiting(const sim::loose_task& reader) {
  reader.start(*executor::current());
  co_await yield();
  while (!reader.at_rest()) co_await yield();
}

TASK_TEST_F(event_queues, give_an_event_on_its_way_to_a_task_that_is_destroyed_to_the_next_in_its_place) {
  porting::event_queue queue;
  std::array<int, 2> marks{};
  std::vector<void*> contexts;
  std::array<porting::pending_region, 2> pending;
  {
    const sim::loose_task reader = read_loosely(queue, contexts);
    co_await until_waiting(reader);
    for (std::size_t i = 0; i < 2; ++i) {
      pending[i] = submit(queue, &marks[i]);
      while (!pending[i].is_complete()) std::this_thread::yield();  // without a turn: the mail is not read
    }
    EXPECT_EQ(queue.size(), 1u);
  }
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_TRUE(contexts.empty());
  for (int& mark : marks) {
    const auto event = co_await queue.next();
    EXPECT_EQ(event.context, &mark);
    EXPECT_TRUE(event.outcome);
  }
}

TASK_TEST_F(event_queues, pass_an_event_of_a_destroyed_task_on_to_one_that_waits_too) {
  porting::event_queue queue;
  int mark = 0;
  std::vector<void*> contexts;
  std::optional<sim::loose_task> first = read_loosely(queue, contexts);
  co_await until_waiting(*first);
  const sim::loose_task second = read_loosely(queue, contexts);
  co_await until_waiting(second);
  const porting::pending_region pending = submit(queue, &mark);
  while (!pending.is_complete()) std::this_thread::yield();
  first.reset();
  while (contexts.empty()) co_await yield();
  EXPECT_EQ(contexts.front(), &mark);
}

TASK_TEST_F(event_queues, cancel_one_whose_handle_went_while_it_was_on_its_way_to_a_destroyed_task) {
  porting::event_queue queue;
  std::vector<void*> contexts;
  {
    const sim::loose_task reader = read_loosely(queue, contexts);
    co_await until_waiting(reader);
    const porting::pending_region pending = submit(queue);
    while (!pending.is_complete()) std::this_thread::yield();
  }
  co_await expect_failure(queue, errc::canceled);
  EXPECT_EQ(domain->registered, domain->deregistered);
}

sim::loose_task wait_loosely(std::shared_ptr<detail::write_counter_core> counter, int& told) {
  porting::remote_writes_operation waiting(std::move(counter), 1, {});
  static_cast<void>(co_await std::move(waiting));
  ++told;
}

TASK_TEST(write_counter, that_tells_a_task_that_is_destroyed_tells_the_others) {
  const auto counter = std::make_shared<detail::write_counter_core>();
  int told = 0;
  std::optional<sim::loose_task> first = wait_loosely(counter, told);
  co_await until_waiting(*first);
  const sim::loose_task second = wait_loosely(counter, told);
  co_await until_waiting(second);
  std::thread([&] { counter->add(); }).join();
  first.reset();
  while (told == 0) co_await yield();
  EXPECT_EQ(told, 1);
}

TEST(write_counter, wakes_tasks_of_many_executors_that_may_be_destroyed_meanwhile) {
  const auto counter = std::make_shared<detail::write_counter_core>();
  std::array<executor, 2> homes;
  const std::jthread peer([&](const std::stop_token& enough) {
    while (!enough.stop_requested()) counter->add();
  });
  std::vector<std::jthread> threads;
  for (executor& home : homes) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        home.run([&]() -> task<> {
          const auto wait = [&]() -> sim::loose_task {
            porting::remote_writes_operation waiting(counter, counter->value() + 5, {});
            static_cast<void>(co_await std::move(waiting));
          };
          const sim::loose_task one = wait();
          one.start(home);
          for (int turns = round % 5; turns >= 0; --turns) co_await yield();
          while (!one.at_rest()) co_await yield();
        }());
      }
    });
  }
}

TASK_TEST_F(event_queues, destroyed_undo_what_nobody_has_read) {
  in_all = 3;
  gated = true;
  std::vector<porting::pending_region> pending;
  {
    porting::event_queue queue;
    for (int i = 0; i < 3; ++i) pending.push_back(submit(queue));
    entered.acquire();
    gate.release();
    entered.acquire();
    while (queue.size() == 0) co_await yield();
  }
  EXPECT_EQ(domain->deregistered, 1) << "the one that was complete";
  gate.release(2);
  entered.acquire();
  const auto nothing = []() noexcept {};
  co_await offload(nothing);  // behind them, for there is one worker
}

TEST(event_queue_threads, give_each_event_to_one_of_many_readers) {
  constexpr int readers = 4;
  constexpr int each = 300;
  const auto domain = std::make_shared<recording_domain>();
  std::latch all_submitted(readers);  // or one that is given up may have been read before
  domain->while_registering = [&] { all_submitted.wait(); };
  std::array<std::byte, 64> memory{};
  porting::event_queue queue;
  std::atomic<int> read{0};
  std::atomic<int> canceled{0};
  std::vector<std::thread> threads;
  std::array<std::vector<porting::pending_region>, readers> pending;  // until all have been read
  for (std::size_t i = 0; i < readers; ++i) {
    threads.emplace_back([&, i] {
      test::run([&]() -> task<> {
        for (std::size_t n = 0; n < each; ++n) {
          auto started = porting::submit(*domain, memory, {.usage = usage::write_dst}, queue, nullptr);
          if (n % 3 != i % 3) pending[i].push_back(std::move(started));
        }
        all_submitted.count_down();
        for (int n = 0; n < each; ++n) {
          const auto event = co_await queue.next();
          ++read;
          if (!event.outcome) ++canceled;
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read, readers * each);
  EXPECT_EQ(canceled, readers * each / 3);
  EXPECT_EQ(queue.size(), 0);
  EXPECT_EQ(domain->registered, domain->deregistered);
}

}  // namespace
}  // namespace weft::mr

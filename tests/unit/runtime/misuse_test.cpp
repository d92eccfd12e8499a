// SPDX-License-Identifier: Apache-2.0
// What the runtime says of programming errors, in every build: words, never a crash without any.
#include <weft/runtime/io/file.hpp>
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/sync_wait.hpp>

#include "runtime/support.hpp"

namespace weft {
namespace {

using test::failed_with;
using test::failure_of;
using test::number_after;

TASK_TEST(task, one_that_is_awaited_a_second_time_says_that_it_is_empty) {
  task<int> once = number_after(1, 7);
  EXPECT_EQ(co_await std::move(once), 7);
  const auto failure = co_await failure_of(std::move(once));  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "a task that is empty"));
}

SCOPE_TEST(operation, that_another_task_awaits_is_refused) {
  event gate;
  channel<int> numbers(1);
  auto wait = gate.wait();
  auto number = numbers.receive();
  children.spawn(wait);
  auto received = children.spawn(number);
  co_await yield();
  EXPECT_TRUE(failed_with(co_await failure_of(when_any(wait)), errc::busy, "another task awaits"));
  EXPECT_TRUE(failed_with(co_await failure_of(when_any(number)), errc::busy, "another task awaits"));
  EXPECT_TRUE(numbers.try_send(7));
  EXPECT_EQ(co_await received, 7);
  gate.set();
  co_await when_any(wait);
}

TEST(task, an_empty_one_is_refused_wherever_tasks_are_taken) {
  executor home;
  const auto refused = [&](auto&& use) { return test::code_thrown_by(use) == errc::invalid_argument; };
  EXPECT_TRUE(refused([&] { home.run(task<int>()); }));
  EXPECT_TRUE(refused([] { static_cast<void>(task<>().origin()); }));
  EXPECT_TRUE(refused([&] { home.run(when_all(number_after(1, 1), task<int>())); }));
  EXPECT_TRUE(refused([&] { home.run(when_any(number_after(1, 1), task<int>())); }));
  EXPECT_TRUE(refused([&] { home.run(with_timeout(1h, task<>())); }));
  std::vector<task<>> several(2);
  EXPECT_TRUE(refused([&] { home.run(when_all(std::move(several))); }));
  test::run_scope(home, [&](scope& children) {
    children.spawn(number_after(3, 1));
    EXPECT_TRUE(refused([&] { children.spawn(task<int>()); }));
    EXPECT_EQ(children.size(), 1U);
  });
  executor_group group({.size = 1});
  EXPECT_TRUE(refused([&] { home.run(failure_of(run_on(group[0], task<>()))); }) ||
              failed_with(home.run(failure_of(run_on(group[0], task<>()))), errc::invalid_argument, "empty"));
  EXPECT_TRUE(refused([&] { sync_wait(group[0], task<>()); }));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
task<int> forgets_its_value(bool remember) {
  co_await yield();
  if (remember) co_return 1;
}
task<int&> forgets_its_reference(int& value, bool remember) {
  co_await yield();
  if (remember) co_return value;
}
#pragma GCC diagnostic pop

TEST(task, one_that_reaches_its_end_without_a_value_is_named_where_it_is_awaited) {
  int value = 0;
  auto failure = test::run(failure_of(forgets_its_value(false)));
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "forgets_its_value"));
  failure = test::run(failure_of(forgets_its_reference(value, false)));
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "forgets_its_reference"));
  EXPECT_EQ(test::run(forgets_its_value(true)), 1);
  EXPECT_EQ(test::code_thrown_by([] { test::run(forgets_its_value(false)); }), errc::invalid_argument);
}

SCOPE_TEST(spawned, one_whose_task_reaches_its_end_without_a_value_says_so) {
  auto child = children.spawn(forgets_its_value(false));
  const auto failure = co_await failure_of(std::move(child));
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "forgets_its_value"));
}

SCOPE_TEST(spawned, an_empty_handle_says_so) {
  spawned<int> handle = children.spawn(number_after(1, 5));
  const spawned<int> taken = std::move(handle);
  std::optional<error> failure;
  try {
    co_await handle;  // NOLINT(bugprone-use-after-move): what is tested
  } catch (const error& why) {
    failure = why;
  }
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "handle"));
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(handle.ended()); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(spawned<>().take()); }), errc::invalid_argument);
  EXPECT_EQ(co_await taken, 5);
}

SCOPE_TEST(spawned, a_result_is_yielded_once_and_not_before_the_end) {
  const auto name = []() -> task<std::string> {
    co_await yield();
    co_return "name";
  };
  spawned<std::string> handle = children.spawn(name());
  EXPECT_EQ(test::code_thrown_by([&] { handle.take(); }), errc::invalid_argument) << "it has not ended";
  EXPECT_EQ(co_await handle, "name");
  EXPECT_EQ(test::code_thrown_by([&] { handle.take(); }), errc::invalid_argument);
  const auto failure = co_await failure_of(std::move(handle));
  EXPECT_TRUE(failed_with(failure, errc::invalid_argument, "result"));
}

TEST(spawned_death, of_the_handle_while_a_task_waits_through_it_ends_the_program_with_words) {
  const auto misuse = [] {
    test::run_scope([](scope& children) -> task<> {
      auto handle = std::make_unique<spawned<int>>(children.spawn(number_after(100, 1)));
      const auto wait = [&]() -> task<> { co_await *handle; };
      children.spawn(wait());
      co_await test::settle();
      handle.reset();
      co_await sleep_for(1s);
    });
  };
  EXPECT_DEATH(misuse(), "weft: the handle of a task was destroyed while somebody waits for the task");
}

// Suspends a task on `operation` and destroys `target` under it.
template <class Target, class Wait>
void destroy_under_a_waiter(std::unique_ptr<Target> target, Wait wait) {
  test::run_scope([&](scope& children) -> task<> {
    children.spawn(wait(*target));
    co_await test::settle();
    target.reset();
  });
}

TEST(event_death, under_a_waiter_ends_the_program_with_words) {
  const auto wait = [](event& what) -> task<> { co_await what.wait(); };
  EXPECT_DEATH(destroy_under_a_waiter(std::make_unique<event>(), wait), "weft: an event was destroyed while");
}

TEST(semaphore_death, under_a_waiter_ends_the_program_with_words) {
  const auto wait = [](semaphore& what) -> task<> { co_await what.acquire(); };
  EXPECT_DEATH(destroy_under_a_waiter(std::make_unique<semaphore>(0), wait),
               "weft: a semaphore or mutex was destroyed");
}

TEST(channel_death, under_a_waiter_ends_the_program_with_words) {
  const auto wait = [](channel<int>& what) -> task<> { co_await what.receive(); };
  EXPECT_DEATH(destroy_under_a_waiter(std::make_unique<channel<int>>(1), wait), "weft: a channel was destroyed while");
}

TEST(stop_source_death, under_a_listener_ends_the_program_with_words) {
  const auto misuse = [] {
    class listener final : public stop_callback {
      void on_stop() noexcept override {}
    };
    listener heard;
    auto source = std::make_unique<stop_source>();
    source->get_token().link(heard);
    source.reset();
  };
  EXPECT_DEATH(misuse(), "weft: a stop_source was destroyed while");
}

TASK_TEST(file, one_that_was_not_opened_says_so) {
  file none;
  EXPECT_TRUE(failed_with(co_await failure_of(none.size()), errc::invalid_argument, "a file that has not been opened"));
  EXPECT_TRUE(failed_with(co_await failure_of(none.read_at(0, {})), errc::invalid_argument, "has not been opened"));
  EXPECT_EQ(co_await test::code_of(none.sync()), errc::invalid_argument);
}

TEST(executor_group, has_no_executor_beyond_its_size) {
  const executor_group group({.size = 1});
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(group[1]); }), errc::out_of_range);
}

}  // namespace
}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
// Every primitive, stopped at each of its steps: the first, the second, the third, ... until it has completed by
// itself. And destroyed while it is suspended, at each of its steps.
#include <weft/runtime/io/file.hpp>
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/sync/semaphore.hpp>

#include <csignal>
#include <cstdio>

#include "runtime/support.hpp"

namespace weft {
namespace {

// One step: everything that is ready goes on once, and a microsecond passes.
task<> step() {
  co_await yield();
  co_await sleep_for(1us);
}

enum class outcome { completed, stopped };

task<> stop_after(int steps, scope& all, bool& asked) {
  for (int i = 0; i < steps; ++i) co_await step();
  asked = true;
  all.request_stop();
}

// Runs `what` and stops it after so many steps, unless it completes before.
template <class Scenario>
task<outcome> stopped_after(int steps, Scenario& what) {
  outcome end = outcome::stopped;
  bool asked = false;
  co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
    all.spawn(stop_after(steps, all, asked));
    try {
      co_await what();
      end = outcome::completed;
    } catch (const error& failure) {
      EXPECT_EQ(failure.code(), errc::canceled) << failure.what();
      EXPECT_TRUE(asked) << "canceled, but nobody has asked for that";
    }
    all.request_stop();
  });
  co_return end;
}

// `check` is called after each time.
template <class Scenario, class Check>
void stop_at_every_step(const executor_options& options, int fewest, Scenario scenario, Check check) {
  constexpr int most = 10'000;
  int steps = 0;
  for (;; ++steps) {
    ASSERT_LT(steps, most) << "it never completes";
    executor home(options);
    outcome end = outcome::stopped;
    const auto root = [&]() -> task<> { end = co_await stopped_after(steps, scenario); };
    home.run(root());
    check();
    if (end == outcome::completed) break;
  }
  EXPECT_GE(steps, fewest) << "it was never stopped half-way";
}

constexpr auto nothing_to_check = [] {};

// On virtual time, so that the steps are the same on every machine.
template <class Scenario, class Check>
void stop_at_every_step(Scenario scenario, Check check) {
  test::simulation machine;
  stop_at_every_step(machine.options(), 2, scenario, check);
}

// Where threads or the kernel have a part in it. The first step comes before the scenario can have completed.
template <class Scenario, class Check>
void stop_at_every_step_for_real(Scenario scenario, Check check) {
  stop_at_every_step(executor_options(), 1, scenario, check);
}

TEST(cancellation, of_a_sleep) {
  const auto scenario = []() -> task<> {
    for (int i = 0; i < 3; ++i) co_await sleep_for(3us);
  };
  stop_at_every_step(scenario, nothing_to_check);
}

task<> set_later(event& what, int steps) {
  for (int i = 0; i < steps; ++i) co_await step();
  what.set();
}

TEST(cancellation, of_waiting_for_an_event) {
  const auto scenario = []() -> task<> {
    event happens;
    co_await when_all(happens.wait(), set_later(happens, 4));
  };
  stop_at_every_step(scenario, nothing_to_check);
}

// Counts the task while it lives.
template <class Counter>
class counted : private test::immovable {
 public:
  explicit counted(Counter& count) noexcept : count_(count) { ++count_; }
  ~counted() { --count_; }

 private:
  Counter& count_;
};

task<> hold(mutex& door, int& inside) {
  const auto guard = co_await door.lock();
  const counted here(inside);
  EXPECT_EQ(inside, 1);
  co_await step();
  co_await step();
}

TEST(cancellation, of_a_mutex_that_others_hold_or_wait_for) {
  mutex door;
  int inside = 0;
  const auto scenario = [&]() -> task<> {
    co_await when_all(hold(door, inside), hold(door, inside), hold(door, inside));
  };
  stop_at_every_step(scenario, [&] {
    EXPECT_FALSE(door.is_locked());
    EXPECT_EQ(inside, 0);
  });
}

task<int> value_after(int steps) {
  for (int i = 0; i < steps; ++i) co_await step();
  co_return steps;
}

TEST(cancellation, of_waiting_for_a_spawned_task) {
  const auto body = [](scope& children) -> task<> {
    auto late = children.spawn(value_after(4));
    auto soon = children.spawn(value_after(2));
    EXPECT_EQ(co_await late, 4);
    EXPECT_EQ(co_await soon, 2);
  };
  const auto scenario = [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, body); };
  stop_at_every_step(scenario, nothing_to_check);
}

TEST(cancellation, of_when_all_and_when_any) {
  const auto scenario = []() -> task<> {
    const auto all = co_await when_all(value_after(2), value_after(3));
    EXPECT_EQ(std::get<1>(all), 3);
    const auto any = co_await when_any(value_after(4), value_after(2));
    EXPECT_EQ(any.index, 1U);
  };
  stop_at_every_step(scenario, nothing_to_check);
}

TEST(cancellation, of_nested_scopes_waits_for_all_children) {
  int alive = 0;
  const auto count = [&](int steps) -> task<> {
    const counted here(alive);
    co_await value_after(steps);
  };
  const auto scenario = [&]() -> task<> {
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(count(3));
      co_await with_scope(on_failure::stop_siblings, [&](scope& grandchildren) -> task<> {
        grandchildren.spawn(count(2));
        co_await count(1);
      });
    });
  };
  stop_at_every_step(scenario, [&] { EXPECT_EQ(alive, 0); });
}

TEST(cancellation, of_a_time_limit_from_outside_is_no_time_out) {
  const auto scenario = []() -> task<> {
    const auto inner = co_await with_timeout(1h, value_after(3));
    EXPECT_EQ(inner, 3);
    const auto late = co_await as_result(with_timeout(2us, value_after(50)));
    if (late.error().code() == errc::canceled) throw late.error();
    EXPECT_EQ(late.error().code(), errc::timed_out);
  };
  stop_at_every_step(scenario, nothing_to_check);
}

TEST(cancellation, of_an_offloaded_function) {
  std::atomic<int> begun{0};
  int finished = 0;
  const auto scenario = [&]() -> task<> {
    const auto work = [&begun] { ++begun; };
    for (int i = 0; i < 3; ++i) {
      co_await offload(work);
      ++finished;
    }
  };
  stop_at_every_step_for_real(scenario, [&] { EXPECT_GE(begun.load(), finished); });
}

TEST(cancellation, of_what_is_done_with_a_file) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> place(std::tmpfile(), &std::fclose);
  const std::string name = "/proc/self/fd/" + std::to_string(::fileno(place.get()));
  std::array<std::byte, 64> bytes{};
  const auto scenario = [&]() -> task<> {
    constexpr file_options options{.access = file_access::read_write};
    file both = co_await file::open(name, options);
    EXPECT_EQ(co_await both.write_at(0, bytes), bytes.size());
    co_await both.sync();
    EXPECT_EQ(co_await both.read_at(0, bytes), bytes.size());
    EXPECT_EQ(co_await both.size(), bytes.size());
  };
  stop_at_every_step_for_real(scenario, nothing_to_check);
}

TEST(cancellation, of_waiting_for_a_signal_loses_none) {
  signal_set signals({SIGUSR2});
  int caught = 0;
  int raised = 0;
  const auto raise_later = [&]() -> task<> {
    co_await step();
    co_await step();
    ++raised;
    ::raise(SIGUSR2);
  };
  const auto catch_one = [&]() -> task<> {
    const int number = co_await signals.next();
    EXPECT_EQ(number, SIGUSR2);
    ++caught;
  };
  const auto scenario = [&]() -> task<> { co_await when_all(raise_later(), catch_one()); };
  stop_at_every_step_for_real(scenario, [&] {
    if (signals.try_next() != 0) ++caught;
    EXPECT_EQ(caught, raised);
  });
}

// ---- destruction

// Destroys what `make` makes after so many steps, when it is suspended on an operation. False if it has ended.
template <class Make>
task<bool> destroyed_after(int steps, const Make& make) {
  const sim::loose_task victim = test::start_loosely(make());
  for (int i = 0; i < steps; ++i) co_await step();
  co_await yield();
  co_return !victim.ended();
}

TEST(destruction, of_a_task_suspended_on_a_sleep_an_event_a_mutex_a_semaphore_or_a_channel) {
  event never;
  mutex door;
  auto held = door.try_lock();
  semaphore permits(0);
  channel<int> numbers(1);
  const auto wait_for = [](event& what) -> task<> { co_await what.wait(); };
  const auto body = [&](scope&) -> task<> { co_await never.wait(); };
  const std::vector<std::function<task<>()>> cases = {
      [&]() -> task<> { co_await sleep_for(1h); },  // the executor's destructor would find its timer
      [&]() -> task<> { co_await never.wait(); },
      [&]() -> task<> { co_await with_timeout(1h, never.wait()); },
      [&]() -> task<> { const auto guard = co_await door.lock(); },
      [&]() -> task<> { co_await permits.acquire(2); },
      [&]() -> task<> { static_cast<void>(co_await numbers.receive()); },
      [&]() -> task<> { static_cast<void>(co_await as_result(with_timeout(1h, permits.acquire()))); },
      [&]() -> task<> { co_await with_timeout(2h, with_timeout(1h, never.wait())); },
      [&]() -> task<> { co_await with_timeout(1h, wait_for(never)); },
      [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, body); },
      [&]() -> task<> { co_await with_timeout(1h, with_scope(on_failure::stop_siblings, body)); },
  };
  for (const auto& make : cases) {
    for (int steps = 0; steps < 3; ++steps) {
      EXPECT_TRUE(test::run(destroyed_after(steps, make)));
    }
  }
  EXPECT_EQ(permits.available(), 0U);
  held = mutex::lock_guard();
  EXPECT_TRUE(door.try_lock()) << "somebody who is gone has it";
}

}  // namespace
}  // namespace weft

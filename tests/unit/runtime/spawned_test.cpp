// SPDX-License-Identifier: Apache-2.0
#include "runtime/support.hpp"

namespace weft {
namespace {

using test::fail_after;
using test::number_after;

task<std::unique_ptr<int>> box(int value) {
  co_await yield();
  co_return std::make_unique<int>(value);
}
task<int&> refer_to(int& what) {
  co_await yield();
  co_return what;
}
task<> set_when(event& start, bool& ended) {
  co_await start.wait();
  ended = true;
}

task<> wait_for(const spawned<>& other) { co_await other; }

// Sets a flag when it goes.
class witness {
 public:
  explicit witness(bool& gone) noexcept : gone_(&gone) {}
  witness(witness&& other) noexcept : gone_(std::exchange(other.gone_, nullptr)) {}
  witness& operator=(witness&&) = delete;
  ~witness() {
    if (gone_ != nullptr) *gone_ = true;
  }

 private:
  bool* gone_;
};
task<> keep(witness) { co_await yield(); }

SCOPE_TEST(spawned, yields_the_value_of_the_task_that_runs_meanwhile) {
  auto first = children.spawn(number_after(3, 1));
  auto second = children.spawn(number_after(1, 2));
  EXPECT_EQ(children.size(), 2U);
  EXPECT_EQ(co_await first, 1);
  EXPECT_TRUE(second.ended());
  EXPECT_EQ(co_await second, 2) << "also of one that has ended before";
}

SCOPE_TEST(spawned, yields_what_can_only_be_moved_and_references) {
  int number = 0;
  auto owner = children.spawn(box(7));
  auto reference = children.spawn(refer_to(number));
  const std::unique_ptr<int> value = co_await owner;
  EXPECT_EQ(*value, 7);
  int& same = co_await reference;
  EXPECT_EQ(&same, &number);
}

TEST(spawned, under_stop_siblings_a_failure_is_thrown_at_the_await_and_at_the_scope) {
  std::string seen;
  const auto body = [&](scope& children) -> task<> {
    auto failing = children.spawn(fail_after(2));
    try {
      co_await failing;
    } catch (const std::runtime_error& failure) {
      seen = failure.what();
    }
  };
  EXPECT_EQ(test::words_thrown_by<std::runtime_error>([&] { test::run_scope(body); }), "after 2");
  EXPECT_EQ(seen, "after 2");
}

TEST(spawned, under_report_a_failure_is_thrown_at_the_await_and_reported) {
  const auto body = [&](scope& children) -> task<> {
    auto failing = children.spawn(fail_after(2));
    EXPECT_THROW(co_await failing, std::runtime_error);
    EXPECT_EQ(co_await children.spawn(number_after(1, 1)), 1) << "the others go on";
  };
  testing::internal::CaptureStderr();
  test::run(with_scope(on_failure::report, body));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(") failed: "), std::string::npos);
}

TEST(spawned, a_stop_of_the_waiter_leaves_the_task_alone_and_one_may_wait_again) {
  test::simulated_executor home;
  bool ended = false;
  event start;
  test::run_scope(home, [&](scope& children) -> task<> {
    auto child = children.spawn(set_when(start, ended));
    EXPECT_EQ(co_await test::code_of(with_timeout(1s, wait_for(child))), errc::timed_out);
    EXPECT_FALSE(child.ended());
    start.set();
    co_await child;
    EXPECT_TRUE(ended);
  });
}

TEST(spawned, one_that_is_dropped_runs_on_and_the_scope_waits_for_it) {
  bool ended = false;
  event start;
  test::run_scope([&](scope& children) -> task<> {
    { const auto dropped = children.spawn(set_when(start, ended)); }
    co_await yield();
    start.set();
    EXPECT_FALSE(ended);
  });
  EXPECT_TRUE(ended);
}

SCOPE_TEST(spawned, a_handle_that_is_kept_keeps_nothing_of_the_task_alive_but_its_result) {
  bool gone = false;
  witness parameter(gone);
  auto child = children.spawn(keep(std::move(parameter)));
  while (!child.ended()) co_await yield();
  EXPECT_TRUE(gone);
  co_await child;
}

// As when a session, which its task keeps alive, holds the handle of that task.
TEST(spawned, a_task_whose_frame_holds_its_own_handle_goes_with_it) {
  struct session {
    spawned<> worker;
    witness end;
  };
  bool gone = false;
  const auto serve = [](std::shared_ptr<session>) -> task<> { co_await yield(); };
  test::run_scope([&](scope& children) {
    const std::shared_ptr<session> one(new session{.worker = {}, .end = witness(gone)});
    one->worker = children.spawn(serve(one));
  });
  EXPECT_TRUE(gone);
}

SCOPE_TEST(spawned, is_awaited_by_one_task_at_a_time) {
  event go;
  auto worker = children.spawn(go.wait());
  auto first = children.spawn(wait_for(worker));
  co_await yield();
  EXPECT_EQ(co_await test::code_of(wait_for(worker)), errc::busy);
  go.set();
  co_await first;
}

TEST(spawned, a_handle_may_outlive_its_scope_and_its_executor) {
  spawned<int> number;
  spawned<int> failure;
  const auto body = [&](scope& children) -> task<> {
    number = children.spawn(number_after(2, 9));
    failure = children.spawn(fail_after(1));
    co_return;
  };
  testing::internal::CaptureStderr();
  test::run(with_scope(on_failure::report, body));
  static_cast<void>(testing::internal::GetCapturedStderr());
  test::run([&]() -> task<> {
    EXPECT_EQ(co_await number, 9);
    EXPECT_THROW(co_await failure, std::runtime_error);
  }());
}

SCOPE_TEST(spawned, awaiting_it_on_another_executor_is_refused) {
  executor_group group({.size = 1});
  event start;
  auto child = children.spawn(start.wait());
  auto elsewhere = test::code_of(wait_for(child));
  EXPECT_EQ(co_await run_on(group[0], std::move(elsewhere)), errc::wrong_thread);
  start.set();
  co_await child;
}

SCOPE_TEST(spawned, goes_with_as_result) {
  auto child = children.spawn(number_after(1, 4));
  const auto value = co_await as_result(std::move(child));
  EXPECT_EQ(value.value(), 4);
}

SCOPE_TEST(spawned, dumps_say_who_waits_for_one) {
  event start;
  auto child = children.spawn(start.wait());
  auto waiter = children.spawn(wait_for(child));
  co_await yield();
  const std::string dump = executor::current()->dump();
  EXPECT_NE(dump.find("on a spawned task"), std::string::npos) << dump;
  start.set();
  co_await waiter;
}

TEST(spawned, one_alone_can_be_told_to_stop_and_the_others_go_on) {
  for (const on_failure policy : {on_failure::stop_siblings, on_failure::report}) {
    int stopped = 0;
    bool ended = false;
    event start;
    const auto wait = [&]() -> task<> {
      const result<void> slept = co_await as_result(sleep_for(duration::max()));
      stopped += slept.error().code() == errc::canceled ? 1 : 0;
      throw error(errc::canceled, "as told");
    };
    const auto body = [&](scope& children) -> task<> {
      auto one = children.spawn(wait());
      auto other = children.spawn(set_when(start, ended));
      co_await yield();
      one.request_stop();
      EXPECT_FALSE(one.ended()) << "asking is not waiting";
      EXPECT_EQ(co_await test::code_of(wait_for(one)), errc::canceled);
      one.request_stop();  // which has ended
      start.set();
      co_await other;
    };
    testing::internal::CaptureStderr();
    test::run(with_scope(policy, body));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "it is no failure of the scope's";
    EXPECT_EQ(stopped, 1);
    EXPECT_TRUE(ended);
  }
}

TEST(spawned, one_told_to_stop_that_fails_otherwise_fails_its_scope) {
  const auto fail = []() -> task<> {
    static_cast<void>(co_await as_result(sleep_for(duration::max())));
    throw std::runtime_error("not as told");
  };
  const auto body = [&](scope& children) -> task<> {
    const auto child = children.spawn(fail());
    co_await yield();
    child.request_stop();
  };
  EXPECT_THROW(test::run(with_scope(on_failure::stop_siblings, body)), std::runtime_error);
}

SCOPE_TEST(spawned, a_stop_of_one_reaches_all_that_it_awaits_and_spawns) {
  int stopped = 0;
  const auto sleep = [&]() -> task<> {
    const result<void> slept = co_await as_result(with_timeout(1h, sleep_for(duration::max())));
    stopped += slept.error().code() == errc::canceled ? 1 : 0;
  };
  const auto inner = [&](scope& grandchildren) -> task<> {
    grandchildren.spawn(sleep());
    grandchildren.spawn(sleep());
    co_await sleep();
  };
  const auto middle = [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, inner); };
  const auto child = children.spawn(middle());
  co_await test::settle();
  child.request_stop();
  static_cast<void>(co_await as_result(wait_for(child)));
  EXPECT_EQ(stopped, 3);
}

TEST(spawned, one_that_is_told_to_stop_before_it_begins_ends_at_its_first_wait) {
  bool began = false;
  const auto work = [&]() -> task<> {
    began = true;
    co_await sleep_for(duration::max());
  };
  test::run_scope([&](scope& children) { children.spawn(work()).request_stop(); });
  EXPECT_TRUE(began);
}

TEST(spawned, a_stop_of_the_scope_still_reaches_one_with_a_handle) {
  spawned<> child;
  test::run_scope([&](scope& children) -> task<> {
    child = children.spawn(sleep_for(duration::max()));
    co_await yield();
    children.request_stop();
  });
  EXPECT_EQ(test::code_thrown_by([&] { child.take(); }), errc::canceled);
}

SCOPE_TEST(spawned, one_is_told_to_stop_on_its_own_executor) {
  const auto child = children.spawn(sleep_for(duration::max()));
  co_await yield();
  EXPECT_EQ(test::code_thrown_elsewhere([&] { child.request_stop(); }), errc::wrong_thread);
  child.request_stop();
}

}  // namespace
}  // namespace weft

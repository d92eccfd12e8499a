// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/event.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime_support.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;

task<> fail(const char* words) {
  co_await yield();
  throw std::runtime_error(words);
}

// Waits for ever, and says so when it has been stopped.
task<> wait_for_stop(int& stopped) {
  try {
    co_await sleep_for(duration::max());
  } catch (const error& failure) {
    if (failure.code() == errc::canceled) ++stopped;
    throw;
  }
}

// Needs several turns to end after it was asked to stop.
task<> end_slowly(bool& ended) {
  try {
    co_await sleep_for(duration::max());
  } catch (const error&) {
  }
  for (int i = 0; i < 10; ++i) co_await yield();
  ended = true;
}

TEST(scope, ends_only_after_its_last_child) {
  int ended = 0;
  const auto child = [&](int turns) -> task<> {
    for (int i = 0; i < turns; ++i) co_await yield();
    ++ended;
  };
  const auto body = [&](scope& children) -> task<> {
    for (int turns = 0; turns < 10; ++turns) children.spawn(child(turns));
    EXPECT_EQ(children.size(), 10U);
    co_return;
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(ended, 10);
}

TEST(scope, the_first_failure_stops_siblings_and_body_and_is_rethrown_after_they_ended) {
  int stopped = 0;
  bool ended = false;
  const auto body = [&](scope& children) -> task<> {
    children.spawn(wait_for_stop(stopped));
    children.spawn(end_slowly(ended));
    children.spawn(fail("first"));
    co_await wait_for_stop(stopped);
  };
  std::string words;
  try {
    test::run(with_scope(on_failure::stop_siblings, body));
  } catch (const std::runtime_error& failure) {
    words = failure.what();
  }
  EXPECT_EQ(words, "first");
  EXPECT_EQ(stopped, 2);
  EXPECT_TRUE(ended);
}

TEST(scope, a_reported_failure_leaves_siblings_and_body_alone) {
  bool went_on = false;
  const auto child = [&]() -> task<> {
    for (int i = 0; i < 10; ++i) co_await yield();
    went_on = true;
  };
  const auto body = [&](scope& children) -> task<> {
    children.spawn(fail("of one client"));
    children.spawn(child());
    for (int i = 0; i < 5; ++i) co_await yield();
    children.spawn(fail("of another"));
  };
  testing::internal::CaptureStderr();
  test::run(with_scope(on_failure::report, body));
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(went_on);
  EXPECT_NE(reported.find("of one client"), std::string::npos);
  EXPECT_NE(reported.find("of another"), std::string::npos);
}

TEST(scope, a_body_that_throws_stops_the_children_under_either_policy) {
  for (const on_failure policy : {on_failure::stop_siblings, on_failure::report}) {
    int stopped = 0;
    const auto body = [&](scope& children) -> task<> {
      children.spawn(wait_for_stop(stopped));
      co_await yield();
      throw std::invalid_argument("body");
    };
    EXPECT_THROW(test::run(with_scope(policy, body)), std::invalid_argument);
    EXPECT_EQ(stopped, 1);
  }
}

TEST(scope, a_stop_of_the_caller_stops_the_children_and_joins_them) {
  bool ended = false;
  int stopped = 0;
  const auto body = [&](scope& children) -> task<> {
    children.spawn(end_slowly(ended));
    children.spawn(wait_for_stop(stopped));
    co_return;
  };
  test::simulation world;
  executor home(world.options());
  const auto limited = [&]() -> task<> { co_await with_timeout(1s, with_scope(on_failure::report, body)); };
  EXPECT_EQ(test::code_thrown_by([&] { home.run(limited()); }), errc::timed_out);
  EXPECT_TRUE(ended);
  EXPECT_EQ(stopped, 1);
}

TEST(scope, children_cut_short_by_the_callers_stop_are_no_success) {
  int stopped = 0;
  const auto body = [&](scope& children) -> task<> {
    children.spawn(wait_for_stop(stopped));
    co_return;
  };
  executor home;
  std::stop_source source;
  source.request_stop();
  const auto run = [&] { home.run(with_scope(on_failure::stop_siblings, body), source.get_token()); };
  EXPECT_EQ(test::code_thrown_by(run), errc::canceled);
}

TEST(scope, one_that_stops_itself_ends_without_an_error) {
  int stopped = 0;
  const auto body = [&](scope& children) -> task<> {
    children.spawn(wait_for_stop(stopped));
    co_await yield();
    children.request_stop();
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(stopped, 1);
}

TEST(scope, a_child_may_spawn_while_the_scope_is_being_joined) {
  int ended = 0;
  const auto grandchild = [&]() -> task<> {
    co_await yield();
    ++ended;
  };
  const auto child = [&](scope& children) -> task<> {
    co_await yield();
    children.spawn(grandchild());
  };
  const auto body = [&](scope& children) -> task<> {
    children.spawn(child(children));
    co_return;
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(ended, 1);
}

TEST(scope, one_spawned_after_the_stop_ends_at_its_first_wait) {
  int stopped = 0;
  const auto body = [&](scope& children) -> task<> {
    children.request_stop();
    children.spawn(wait_for_stop(stopped));
    co_return;
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(stopped, 1);
}

TEST(scope, a_body_given_as_a_temporary_lives_until_it_has_run) {
  int value = 0;
  int* const target = &value;
  task<> later_on = with_scope(on_failure::stop_siblings, [target](scope&) -> task<> {
    co_await yield();
    *target = 1;
  });
  test::run(std::move(later_on));
  EXPECT_EQ(value, 1);
}

TEST(scope, the_callers_own_stop_token_is_back_after_the_scope) {
  const auto body = [](scope& children) -> task<> {
    children.request_stop();
    co_return;
  };
  const auto root = [&]() -> task<> {
    co_await with_scope(on_failure::stop_siblings, body);
    co_await sleep_for(1ms);  // would throw errc::canceled
  };
  test::run(root());
}

TEST(scope, spawning_from_another_thread_is_refused) {
  std::error_code refused;
  const auto body = [&](scope& children) -> task<> {
    std::thread other([&] { refused = test::code_thrown_by([&] { children.spawn(fail("never runs")); }); });
    other.join();
    co_return;
  };
  test::run(with_scope(on_failure::stop_siblings, body));
  EXPECT_EQ(refused, errc::wrong_thread);
}

}  // namespace
}  // namespace weft

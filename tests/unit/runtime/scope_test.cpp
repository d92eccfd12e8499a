// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/scope.hpp>

#include <type_traits>

#include "runtime/support.hpp"

namespace weft {
namespace {

// Waits for ever, and says so when it has been stopped.
task<> wait_for_stop(int& stopped) {
  try {
    co_await sleep_for(duration::max());
  } catch (const error& failure) {
    if (failure.code() == errc::canceled) ++stopped;
    throw;
  }
}

TEST(scope, ends_only_after_its_last_child) {
  int ended = 0;
  const auto child = [&](int turns) -> task<> {
    for (int i = 0; i < turns; ++i) co_await yield();
    ++ended;
  };
  test::run_scope([&](scope& children) {
    for (int turns = 0; turns < 10; ++turns) children.spawn(child(turns));
    EXPECT_EQ(children.size(), 10U);
  });
  EXPECT_EQ(ended, 10);
}

TEST(scope, the_first_failure_stops_siblings_and_body_and_is_rethrown_after_they_ended) {
  int stopped = 0;
  bool ended = false;
  const auto body = [&](scope& children) -> task<> {
    children.spawn(wait_for_stop(stopped));
    children.spawn(test::stop_slowly(ended));
    children.spawn(test::fail_after(1));
    co_await wait_for_stop(stopped);
  };
  EXPECT_EQ(test::words_thrown_by<std::runtime_error>([&] { test::run_scope(body); }), "after 1");
  EXPECT_EQ(stopped, 2);
  EXPECT_TRUE(ended);
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
    children.spawn(test::stop_slowly(ended));
    children.spawn(wait_for_stop(stopped));
    co_return;
  };
  test::simulated_executor home;
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
  test::run_scope([&](scope& children) { children.spawn(child(children)); });
  EXPECT_EQ(ended, 1);
}

TEST(scope, one_spawned_after_the_stop_ends_at_its_first_wait) {
  int stopped = 0;
  test::run_scope([&](scope& children) {
    children.request_stop();
    children.spawn(wait_for_stop(stopped));
  });
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

TASK_TEST(scope, the_callers_own_stop_token_is_back_after_the_scope) {
  const auto body = [](scope& children) -> task<> {
    children.request_stop();
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, body);
  co_await sleep_for(1ms);  // would throw errc::canceled
}

SCOPE_TEST(scope, spawning_from_another_thread_is_refused) {
  EXPECT_EQ(test::code_thrown_elsewhere([&] { children.spawn(test::fail_after(0)); }), errc::wrong_thread);
  co_return;
}

TEST(scope, a_lambda_that_captures_is_kept_as_long_as_its_child) {
  int sum = 0;
  test::run_scope([&](scope& children) {
    for (int i = 1; i <= 3; ++i) {
      children.spawn([&sum, i]() -> task<> {
        co_await yield();
        sum += i;
      });
    }
    std::array<char, 256> other_words{};  // where the closures were
    other_words.fill('x');
    EXPECT_EQ(other_words.back(), 'x');
  });
  EXPECT_EQ(sum, 6);
}

TEST(scope, a_named_closure_is_copied_and_may_own) {
  auto owned = std::make_shared<std::string>("owned");
  std::string seen;
  test::run_scope([&](scope& children) {
    {
      const auto work = [&seen, owned]() -> task<> {
        co_await yield();
        seen = *owned;
      };
      children.spawn(work, "with a name");
      EXPECT_EQ(owned.use_count(), 3);
    }
    EXPECT_EQ(owned.use_count(), 2);
  });
  EXPECT_EQ(seen, "owned");
  EXPECT_EQ(owned.use_count(), 1) << "it goes with the child";
}

SCOPE_TEST(scope, arguments_live_as_long_as_the_child_also_those_taken_by_reference) {
  const auto measure = [](const std::string& words, std::unique_ptr<int> extra) -> task<std::size_t> {
    co_await yield();
    co_return words.size() + static_cast<std::size_t>(*extra);
  };
  std::string words(100, 'x');
  auto first = children.spawn(measure, words, std::make_unique<int>(1));
  words.clear();
  auto second = children.spawn(measure, std::string(50, 'y'), std::make_unique<int>(2));
  EXPECT_EQ(co_await first, 101U);
  EXPECT_EQ(co_await second, 52U);
  const auto add = [](int& counter) -> task<> {
    co_await yield();
    ++counter;
  };
  int counter = 0;
  co_await children.spawn(add, std::ref(counter));
  EXPECT_EQ(counter, 1);
}

SCOPE_TEST(scope, functions_and_members_are_spawned_with_their_arguments) {
  class server {
   public:
    task<int> serve(int id) {
      co_await yield();
      co_return id + base;
    }
    int base = 10;
  };
  server one;
  auto answer = children.spawn(&server::serve, &one, 5);
  EXPECT_EQ(co_await answer, 15);
  auto number = children.spawn(test::number_after, 2, 7);
  EXPECT_EQ(co_await number, 7);
}

// What GCC 12 would destroy twice beside a co_await is not pinned: tests/coroutines has the words of the compiler.
template <class Closure>
concept spawnable = requires(scope& children, Closure closure) { children.spawn(std::forward<Closure>(closure)); };

TEST(scope, a_temporary_closure_that_owns_is_refused_by_the_compiler) {
  const auto owner = [words = std::string()]() -> task<> { co_return; };
  int number = 0;
  const auto reference = [&number]() -> task<> {
    ++number;
    co_return;
  };
  using owning = std::remove_const_t<decltype(owner)>;
  using referring = std::remove_const_t<decltype(reference)>;
  EXPECT_FALSE(pinned<owning>);
  EXPECT_TRUE(spawnable<owning&>);
  EXPECT_TRUE(spawnable<referring>);
  EXPECT_FALSE(spawnable<task<>&>) << "a task is moved";
  EXPECT_TRUE(spawnable<task<>>);
  EXPECT_FALSE(spawnable<int>);
}

TEST(scope, operations_are_spawned_as_they_are) {
  test::simulated_executor home;
  event gate;
  test::run_scope(home, [&](scope& children) -> task<> {
    auto slept = children.spawn(sleep_for(3s), "a nap");
    auto waited = children.spawn(gate.wait());
    auto again = children.spawn(waited);  // the handle of another, where it is
    co_await yield();
    EXPECT_EQ(children.size(), 3U);
    EXPECT_NE(executor::current()->dump().find("a nap: "), std::string::npos);
    co_await slept;
    gate.set();
    co_await again;
    EXPECT_TRUE(waited.ended());
  });
  EXPECT_EQ(home.world.elapsed(), 3s);
}

}  // namespace
}  // namespace weft

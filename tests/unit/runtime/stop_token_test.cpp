// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/as_task.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/stop_token.hpp>

#include <stop_token>

#include "runtime/support.hpp"

namespace weft {
namespace {

class listener final : public stop_callback {
 public:
  int heard = 0;
  listener* destroys = nullptr;  // unlinks it, as its destructor would

  using stop_callback::unlink;

 private:
  void on_stop() noexcept override {
    ++heard;
    if (destroys != nullptr) destroys->unlink();
  }
};

TEST(stop_token, tells_every_callback_once) {
  stop_source source;
  std::vector<listener> listeners(5);
  for (listener& item : listeners) source.get_token().link(item);
  source.request_stop();
  source.request_stop();
  for (const listener& item : listeners) EXPECT_EQ(item.heard, 1);
}

TEST(stop_token, a_callback_that_unlinked_hears_nothing) {
  stop_source source;
  listener gone;
  listener stays;
  source.get_token().link(stays);
  source.get_token().link(gone);
  gone.unlink();
  source.request_stop();
  EXPECT_EQ(gone.heard, 0);
  EXPECT_EQ(stays.heard, 1);
}

TEST(stop_token, a_callback_may_take_another_away_that_was_to_be_told_next) {
  stop_source source;
  listener first;
  listener second;
  listener third;
  for (listener* item : {&first, &second, &third}) source.get_token().link(*item);
  third.destroys = &second;  // the last to link is the first to hear
  source.request_stop();
  EXPECT_EQ(third.heard, 1);
  EXPECT_EQ(second.heard, 0);
  EXPECT_EQ(first.heard, 1);
}

TEST(stop_token, linking_twice_is_linking_once) {
  stop_source source;
  listener item;
  source.get_token().link(item);
  source.get_token().link(item);
  source.request_stop();
  EXPECT_EQ(item.heard, 1);
}

TEST(stop_token, one_without_a_source_never_stops) {
  listener item;
  const stop_token none;
  none.link(item);
  EXPECT_FALSE(none.stop_possible());
  EXPECT_FALSE(none.stop_requested());
}

TEST(stop_token, a_linked_source_stops_with_its_parent_but_not_the_other_way) {
  stop_source parent;
  linked_stop_source left(parent.get_token());
  linked_stop_source right(parent.get_token());
  left.request_stop();
  EXPECT_FALSE(parent.stop_requested());
  EXPECT_FALSE(right.stop_requested());
  parent.request_stop();
  EXPECT_TRUE(right.stop_requested());
}

TEST(stop_token, a_source_linked_to_a_stopped_parent_is_stopped) {
  stop_source parent;
  parent.request_stop();
  const linked_stop_source late(parent.get_token());
  EXPECT_TRUE(late.stop_requested());
}

TEST(stop_token, a_task_inherits_it_from_whoever_awaits_it) {
  const auto child = []() -> task<bool> {
    const stop_token mine = co_await current_stop_token();
    co_return mine.stop_requested();
  };
  const auto root = [&]() -> task<bool> { co_return co_await child(); };
  executor home;
  std::stop_source source;
  EXPECT_FALSE(home.run(root(), source.get_token()));
  source.request_stop();
  EXPECT_TRUE(home.run(root(), source.get_token()));
}

// ---- tasks that wait

// Ends when the test says so, whatever it is asked.
class stubborn_operation final : public detail::operation_base {
 public:
  int asked = 0;

  void end() noexcept { finish(); }
  void await_resume() const {
    if (canceled()) throw error(errc::canceled, "wait");
  }

 private:
  void cancel() noexcept override { ++asked; }
};

// Awaits this under that token.
task<> under(stop_source& source, task<> what) {
  detail::promise_base& self = co_await detail::current_promise();
  self.set_stop_token(source.get_token());
  co_await std::move(what);
}

task<> wait_for(stubborn_operation& what) { co_await detail::await_in_place(&what); }
task<> wait_shielded(stubborn_operation& what) {
  const detail::stop_shield shield(co_await detail::current_promise());
  co_await detail::await_in_place(&what);
}
task<> wait_after_a_shield(stubborn_operation& what) {
  detail::promise_base& self = co_await detail::current_promise();
  { const detail::stop_shield shield(self); }
  co_await detail::await_in_place(&what);
}

// How often `waited` is asked to end, on which `what` is suspended, when the source that `what` is under stops.
task<int> asked_by_a_stop(const stubborn_operation& waited, task<> what) {
  stop_source source;
  const sim::loose_task waiter = test::start_loosely(under(source, std::move(what)));
  co_await yield();
  source.request_stop();
  source.request_stop();
  co_return waited.asked;
}

TASK_TEST(stop_token, reaches_what_the_innermost_of_the_tasks_that_inherit_it_waits_for) {
  stubborn_operation waited;
  const auto middle = [&]() -> task<> { co_await wait_for(waited); };
  EXPECT_EQ(co_await asked_by_a_stop(waited, middle()), 1);
}

TASK_TEST(stop_token, does_not_reach_a_task_further_down_that_has_another) {
  stubborn_operation waited;
  EXPECT_EQ(co_await asked_by_a_stop(waited, wait_shielded(waited)), 0);
}

TASK_TEST(stop_token, asks_an_operation_once_of_a_task_that_was_given_the_same_token_again) {
  stubborn_operation waited;
  EXPECT_EQ(co_await asked_by_a_stop(waited, wait_after_a_shield(waited)), 1);
}

TEST(stop_token, asks_an_operation_once_of_a_spawned_task_that_was_given_its_token_again) {
  stubborn_operation waited;
  test::run_scope([&](scope& children) -> task<> {
    const auto child = children.spawn(wait_after_a_shield(waited));
    co_await yield();
    child.request_stop();
    EXPECT_EQ(waited.asked, 1);
    waited.end();
  });
}

TASK_TEST(stop_token, one_that_is_replaced_while_its_task_runs_stops_nothing) {
  stop_source before;
  stop_source after;
  stubborn_operation waited;
  const auto outer = [&]() -> task<> {
    detail::promise_base& self = co_await detail::current_promise();
    self.set_stop_token(before.get_token());
    self.set_stop_token(after.get_token());
    co_await detail::await_in_place(&waited);
  };
  const sim::loose_task waiter = test::start_loosely(outer());
  co_await yield();
  before.request_stop();
  EXPECT_EQ(waited.asked, 0);
  after.request_stop();
  EXPECT_EQ(waited.asked, 1);
}

TASK_TEST(stop_token, a_source_may_end_before_a_task_that_no_longer_waits_under_it) {
  event over;
  const auto outlives = [&]() -> task<> {
    detail::promise_base& self = co_await detail::current_promise();
    {
      stop_source source;
      self.set_stop_token(source.get_token());
      co_await yield();
    }
    self.set_stop_token(stop_token());
    co_await over.wait();
  };
  const auto end = [&]() -> task<> {
    for (int i = 0; i < 3; ++i) co_await yield();
    over.set();
  };
  co_await when_all(outlives(), end());
}

// Asks a source to stop when it is destroyed, as the owner of a set-up does.
class stop_at_the_end : private test::immovable {
 public:
  explicit stop_at_the_end(stop_source& source) noexcept : source_(source) {}
  ~stop_at_the_end() { source_.request_stop(); }

 private:
  stop_source& source_;
};

TASK_TEST(stop_token, a_stop_by_a_frame_that_is_destroyed_does_not_find_the_operation_that_went_with_it) {
  event never;
  const auto waits = [&]() -> task<> {
    stop_source source;
    const stop_at_the_end guard(source);
    detail::promise_base& self = co_await detail::current_promise();
    self.set_stop_token(source.get_token());
    co_await never.wait();
  };
  co_await test::destroyed_while_it_waits(waits());
}

TEST(stop_source_death, under_a_waiting_task_ends_the_program_with_words) {
  const auto misuse = [] {
    stubborn_operation never;
    auto source = std::make_unique<stop_source>();
    test::run_scope([&](scope& children) -> task<> {
      children.spawn(under(*source, wait_for(never)));
      co_await yield();
      source.reset();
    });
  };
  EXPECT_DEATH(misuse(), "weft: a stop_source was destroyed while");
}

TEST(stop_token, a_stop_from_another_thread_ends_a_waiting_task) {
  executor home;
  std::stop_source source;
  event never;
  std::jthread other;
  const auto start = [&]() -> task<> {
    other = std::jthread([&] { source.request_stop(); });
    co_await never.wait();
  };
  EXPECT_EQ(test::code_thrown_by([&] { home.run(start(), source.get_token()); }), errc::canceled);
}

TEST(stop_token, a_stop_that_comes_while_the_run_ends_is_harmless) {
  for (int i = 0; i < 200; ++i) {
    executor home;
    std::stop_source source;
    const std::jthread other([&] { source.request_stop(); });
    const auto root = []() -> task<> { co_await yield(); };
    home.run(root(), source.get_token());
  }
}

}  // namespace
}  // namespace weft

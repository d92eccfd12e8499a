// SPDX-License-Identifier: Apache-2.0
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

TEST(stop_token, a_stop_from_another_thread_ends_a_waiting_task) {
  executor home;
  std::stop_source source;
  event never;
  const auto root = [&]() -> task<> { co_await never.wait(); };
  std::thread other;
  const auto start = [&]() -> task<> {
    other = std::thread([&] { source.request_stop(); });
    co_await root();
  };
  EXPECT_EQ(test::code_thrown_by([&] { home.run(start(), source.get_token()); }), errc::canceled);
  other.join();
}

TEST(stop_token, a_stop_that_comes_while_the_run_ends_is_harmless) {
  for (int i = 0; i < 200; ++i) {
    executor home;
    std::stop_source source;
    std::thread other([&] { source.request_stop(); });
    const auto root = []() -> task<> { co_await yield(); };
    home.run(root(), source.get_token());
    other.join();
  }
}

}  // namespace
}  // namespace weft

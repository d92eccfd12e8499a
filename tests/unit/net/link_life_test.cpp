// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/link_life.hpp>
#include <weft/runtime/error.hpp>

#include "kit/test.hpp"

namespace weft::net {
namespace {

struct counting_events final : link_events {
  void completed(work_request&, work_status) noexcept override {}
  void received(receive_work&, const arrival&) noexcept override {}
  void receive_flushed(receive_work&) noexcept override {}
  void ended(bool in_order, const error& why) noexcept override {
    ++ends;
    orderly = in_order;
    code = why.code();
    if (when_ended) when_ended();
  }
  void closed() noexcept override {
    ++closes;
    if (when_closed) when_closed();
  }

  int ends = 0;
  int closes = 0;
  bool orderly = false;
  std::error_code code;
  std::function<void()> when_ended;
  std::function<void()> when_closed;
};

const error gone = weft::detail::make_error(errc::peer_vanished, "gone");

TEST(link_life, ends_in_order_once_both_halves_have_finished) {
  counting_events events;
  link_life life;
  EXPECT_FALSE(life.has_begun());
  life.begin(events);
  EXPECT_FALSE(life.is_ending());
  life.shut_down();
  EXPECT_TRUE(life.is_ending());
  EXPECT_TRUE(life.is_finishing());
  life.finish();
  EXPECT_FALSE(life.is_finishing());
  life.peer_finished();
  EXPECT_FALSE(life.may_close());
  life.end(true, weft::detail::make_error(errc::peer_closed));
  EXPECT_TRUE(life.may_close());
  life.leave();
  EXPECT_TRUE(life.is_leaving());
  EXPECT_FALSE(life.is_closed());
  life.close();
  EXPECT_EQ(events.closes, 0);
  life.tell_closed();
  EXPECT_TRUE(life.is_closed());
  EXPECT_TRUE(events.orderly);
  EXPECT_EQ(events.code, errc::peer_closed);
  EXPECT_EQ(events.ends, 1);
  EXPECT_EQ(events.closes, 1);
}

TEST(link_life, of_a_broken_link_does_not_wait_for_the_peer) {
  counting_events events;
  link_life life;
  life.begin(events);
  life.shut_down();
  life.break_off();
  EXPECT_FALSE(life.is_finishing());
  EXPECT_FALSE(life.may_close());
  life.end(false, gone);
  EXPECT_TRUE(life.may_close());
  life.break_off();
  life.close();
  life.tell_closed();
  EXPECT_FALSE(events.orderly);
  EXPECT_EQ(events.ends, 1);
  EXPECT_EQ(events.closes, 1);
}

TEST(link_life, goes_on_sending_after_the_peer_has_ended_in_order) {
  counting_events events;
  link_life life;
  life.begin(events);
  life.peer_finished();
  life.end(true, weft::detail::make_error(errc::peer_closed));
  EXPECT_FALSE(life.may_close());
  life.shut_down();
  EXPECT_TRUE(life.is_finishing());
  life.finish();
  EXPECT_TRUE(life.may_close());
  life.close();
  life.tell_closed();
}

TEST(link_life, of_which_only_the_peer_has_left_is_not_over) {
  counting_events events;
  link_life life;
  life.begin(events);
  life.peer_left();
  EXPECT_TRUE(life.is_ending());
  EXPECT_TRUE(life.peer_has_left());
  EXPECT_FALSE(life.peer_has_finished());
  life.end(false, gone);
  life.finish();
  EXPECT_FALSE(life.may_close());
  life.break_off();
  life.close();
  life.tell_closed();
}

TEST(link_life, has_ended_when_the_connection_is_told) {
  counting_events events;
  link_life life;
  life.begin(events);
  bool had_ended = false;
  events.when_ended = [&] { had_ended = life.has_ended(); };
  life.end(false, gone);
  EXPECT_TRUE(had_ended);
  life.break_off();
  life.close();
  life.tell_closed();
}

TEST(link_life, may_be_destroyed_by_the_connection_that_is_told_of_its_close) {
  counting_events events;
  auto life = std::make_unique<link_life>();
  life->begin(events);
  life->end(false, gone);
  life->close();
  events.when_closed = [&] { life.reset(); };
  life->tell_closed();
  EXPECT_EQ(events.closes, 1);
}

TEST(link_life, of_a_link_that_was_never_started_may_just_end) {
  link_life life;
  life.shut_down();
}

#ifndef NDEBUG
using steps = std::function<void(link_life&)>;

// The steps of a link that has just closed.
void close(link_life& life) {
  life.end(false, gone);
  life.close();
}

TEST(link_life, takes_no_step_too_early_or_twice) {
  const std::vector<std::pair<steps, const char*>> illegal = {
      {[](link_life& life) { life.finish(); }, "finished too early"},
      {[](link_life& life) { life.shut_down(), life.finish(), life.finish(); }, "finished too early, or twice"},
      {[](link_life& life) { life.end(false, gone), life.end(false, gone); }, "ended before it was started, or twice"},
      {[](link_life& life) { life.leave(); }, "left before it had ended"},
      {[](link_life& life) { life.end(false, gone), life.leave(), life.leave(); },
       "left before it had ended, or twice"},
      {[](link_life& life) { close(life), life.leave(); }, "left before it had ended, or twice"},
      {[](link_life& life) { life.close(); }, "closed before it had ended"},
      {[](link_life& life) { close(life), life.close(); }, "closed before it had ended, or twice"},
      {[](link_life& life) { close(life), life.break_off(); }, "broken off after it had closed"},
      {[](link_life& life) { life.tell_closed(); }, "called too early"},
      {[](link_life& life) { close(life), life.tell_closed(), life.tell_closed(); }, "called too early, or twice"},
      {[](link_life&) {}, "destroyed before it was closed"},
  };
  for (const auto& [go, words] : illegal) {
    const auto misuse = [&go = go] {
      counting_events events;
      link_life life;
      life.begin(events);
      go(life);
    };
    EXPECT_DEATH(misuse(), words);
  }
}

TEST(link_life, does_not_begin_twice_and_does_not_end_before_it_has_begun) {
  counting_events events;
  const auto begin_twice = [&] {
    link_life life;
    life.begin(events);
    life.begin(events);
  };
  const auto end_at_once = [] {
    link_life life;
    life.end(false, gone);
  };
  EXPECT_DEATH(begin_twice(), "started twice");
  EXPECT_DEATH(end_at_once(), "ended before it was started");
}
#endif

}  // namespace
}  // namespace weft::net

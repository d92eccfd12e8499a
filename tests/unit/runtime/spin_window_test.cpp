// SPDX-License-Identifier: Apache-2.0
// How long an executor looks before it sleeps, by what it has found.
#include <weft/runtime/core/spin_window.hpp>

#include <gtest/gtest.h>

namespace weft::detail {
namespace {

using std::chrono::microseconds;

constexpr duration longest = microseconds(50);

// How often the executor sleeps at once before it looks again.
int rest_of(spin_window& window) {
  for (int sleeps = 0; sleeps < 10'000; ++sleeps) {
    if (window.next() != duration::zero()) return sleeps;
  }
  return 10'000;
}

TEST(spin_window, is_twice_the_usual_gap_but_neither_longer_than_allowed_nor_shorter_than_a_fifth_of_that) {
  spin_window window(longest);
  for (int i = 0; i < 100; ++i) window.found_after(microseconds(40));
  EXPECT_EQ(window.next(), longest);
  for (int i = 0; i < 100; ++i) window.found_after(microseconds(10));
  EXPECT_LT(window.next(), microseconds(21));
  EXPECT_GT(window.next(), microseconds(19));
  for (int i = 0; i < 100; ++i) window.found_after(microseconds(1));
  EXPECT_EQ(window.next(), longest / 5);
}

TEST(spin_window, is_none_where_completions_take_longer_until_a_few_have_come_soon) {
  spin_window window(longest);
  for (int i = 0; i < 100; ++i) window.slept(std::chrono::hours(1));
  EXPECT_EQ(window.next(), duration::zero());
  for (int i = 0; i < 12; ++i) window.slept(microseconds(5));
  EXPECT_NE(window.next(), duration::zero());
}

TEST(spin_window, is_none_for_a_while_after_four_looks_in_vain_however_soon_a_sleep_ended) {
  spin_window window(longest);
  for (int i = 0; i < 3; ++i) {
    window.found_nothing();
    window.slept(microseconds(5));
    EXPECT_EQ(rest_of(window), 0);
  }
  window.found_nothing();
  EXPECT_EQ(rest_of(window), 64);
}

TEST(spin_window, is_tried_more_and_more_seldom_while_that_is_in_vain) {
  spin_window window(longest);
  for (int i = 0; i < 3; ++i) window.found_nothing();
  for (const int rest : {64, 128, 256, 512, 1024, 1024}) {
    window.found_nothing();
    EXPECT_EQ(rest_of(window), rest);
  }
}

TEST(spin_window, is_as_before_once_a_look_has_found_something) {
  spin_window window(longest);
  for (int i = 0; i < 8; ++i) window.found_nothing();
  rest_of(window);
  window.found_after(microseconds(5));
  for (int i = 0; i < 3; ++i) window.found_nothing();
  EXPECT_EQ(rest_of(window), 0);
  window.found_nothing();
  EXPECT_EQ(rest_of(window), 64);
}

}  // namespace
}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#include "shrink.hpp"

#include "kit/test.hpp"
#include "script.hpp"

namespace weft::stress {
namespace {

bool has(const sim::script& what, sim::action kind) {
  return std::any_of(what.meetings.begin(), what.meetings.end(), [kind](const sim::meeting_plan& plan) {
    return std::any_of(plan.lanes.begin(), plan.lanes.end(), [kind](const sim::lane& one) {
      return std::any_of(one.steps.begin(), one.steps.end(), [kind](const sim::step& s) { return s.what == kind; });
    });
  });
}

/// The first seed whose script has it.
sim::script script_with(sim::action kind) {
  std::uint64_t seed = 0;
  while (!has(sim::make_script(seed), kind)) ++seed;
  return sim::make_script(seed);
}

TEST(shrinking, what_a_failure_does_not_need_goes) {
  const auto fails = [](const sim::script& what) { return has(what, sim::action::swap); };
  const sim::script small = shrink(script_with(sim::action::swap), fails, 10'000);
  ASSERT_EQ(small.meetings.size(), 1U);
  const sim::meeting_plan& plan = small.meetings.front();
  EXPECT_TRUE(plan.faults.empty());
  ASSERT_EQ(plan.lanes.size(), 1U);
  ASSERT_EQ(plan.lanes.front().steps.size(), 1U);
  EXPECT_EQ(plan.lanes.front().steps.front().what, sim::action::swap);
  EXPECT_EQ(plan.lanes.front().steps.front().stop_after_us, 0U);
}

TEST(shrinking, a_failure_that_needs_two_things_keeps_both) {
  const auto fails = [](const sim::script& what) {
    return has(what, sim::action::swap) && has(what, sim::action::send);
  };
  sim::script whole = script_with(sim::action::swap);
  whole.meetings.push_back(script_with(sim::action::send).meetings.front());
  ASSERT_TRUE(fails(whole));
  const sim::script small = shrink(whole, fails, 10'000);
  EXPECT_TRUE(fails(small));
  EXPECT_LE(sim::length_of(small), 6U);
}

TEST(shrinking, it_ends_after_as_many_tries_as_it_may_make) {
  std::size_t tries = 0;
  const auto fails = [&tries](const sim::script&) { return ++tries == 0; };
  static_cast<void>(shrink(sim::make_script(1), fails, 7));
  EXPECT_EQ(tries, 7U);
}

}  // namespace
}  // namespace weft::stress

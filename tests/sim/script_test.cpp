// SPDX-License-Identifier: Apache-2.0
#include "script.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "run.hpp"

namespace weft::sim {
namespace {

// There is no way to go on: whoever waits, waits for ever.
void give_up(const std::string& why) {
  fmt::print(stderr, "{}\n", why);
  std::abort();
}

TEST(scripts, a_script_reads_back_as_it_was_written) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::string text = to_text(make_script(seed));
    EXPECT_EQ(to_text(parse_script(text)), text);
  }
}

void repeats(fabric where) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const script what = make_script(seed);
    const outcome first = play(what, give_up, where);
    const outcome second = play(what, give_up, where);
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

// So that those below are about them, too.
// Nothing else may be left of one that was cut down.
TEST(scripts, what_has_no_lanes_can_be_played) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    script what = make_script(seed);
    for (meeting_plan& each : what.meetings) each.lanes.clear();
    static_cast<void>(play(parse_script(to_text(what)), give_up, fabric::simulated));
  }
}

TEST(scripts, most_are_for_several_executors_and_some_for_one) {
  std::array<int, 4> scripts{};
  std::array<int, 4> apart{};  // with a connection between two of them
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const script what = make_script(seed);
    const auto is_apart = [](const meeting_plan& plan) { return plan.client_home != plan.server_home; };
    ++scripts.at(what.executors);
    if (std::any_of(what.meetings.begin(), what.meetings.end(), is_apart)) ++apart.at(what.executors);
  }
  EXPECT_EQ(scripts[0], 0);
  EXPECT_GT(scripts[1], 5);
  EXPECT_EQ(apart[1], 0);
  EXPECT_GT(apart[2], 5);
  EXPECT_GT(apart[3], 5);
}

TEST(scripts, a_seed_repeats_its_run_bit_for_bit) { repeats(fabric::simulated); }

#ifdef WEFT_WITH_VERBS
TEST(scripts, a_seed_repeats_its_run_on_a_device_bit_for_bit) { repeats(fabric::simulated_rdma); }
#endif

}  // namespace
}  // namespace weft::sim

// SPDX-License-Identifier: Apache-2.0
#include "script.hpp"

#include <fmt/core.h>

#include <cstdlib>

#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include "run.hpp"
#include "unit/sanitized.hpp"

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

// What parse_script() says of a script in which that stands in place of this; empty if it understands it.
std::string said_of(const std::string& what, const std::string& instead) {
  script whole = make_script(1);
  whole.meetings.resize(1);
  whole.meetings[0].lanes.resize(1);
  whole.meetings[0].lanes[0].steps = {step{}};
  whole.meetings[0].faults = {fault{}};
  std::string text = to_text(whole);
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what << " in " << text;
  text.replace(at, what.size(), instead);
  return test::words_thrown_by<std::invalid_argument>([&] { return parse_script(text); });
}

TEST(scripts, one_that_means_nothing_is_refused_in_words) {
  const std::string step = "the script.meetings[0].lanes[0].steps[0]";
  EXPECT_EQ(said_of("\"seed\":1", "\"seed\":2"), "");
  EXPECT_EQ(said_of("\"send\"", "\"sned\""), step + ".what is \"sned\", which means nothing");
  EXPECT_EQ(said_of("\"send\"", "4"), step + ".what is 4, and has to be a word");
  EXPECT_EQ(said_of("\"moved\"", "\"lent\""), step + ".memory is \"lent\", which means nothing");
  EXPECT_EQ(said_of("\"reset\"", "\"send\""), "the script.meetings[0].faults[0].what is \"send\", which means nothing");
  EXPECT_EQ(said_of(",\"seed\":1", ""), "the script has no \"seed\"");
  EXPECT_EQ(said_of("\"seed\":1", "\"seed\":1,\"sede\":1"), "the script has \"sede\", which means nothing");
  EXPECT_EQ(said_of("\"seed\":1", "\"seed\":-1"), "the script.seed is -1, and has to be a whole number");
  EXPECT_EQ(said_of("\"failing_accepts\":0", "\"failing_accepts\":5000000000"),
            "the script.failing_accepts is 5000000000, which is too large");
  EXPECT_EQ(said_of("\"bytes\":", "\"bytes\":{},\"b\":"), step + " has \"b\", which means nothing");
  EXPECT_EQ(said_of("{\"allow", "{\n{\"allow"), "the script is no JSON: nobody understands line 2");
}

outcome play_seed(std::uint64_t seed, fabric where) {
  script what = make_script(seed);
  if (where == fabric::simulated_rails) give_rails(what);
  return play(what, give_up, where);
}

void repeats(fabric where) {
  const std::uint64_t seeds = test::sanitized ? 20 : 50;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const outcome first = play_seed(seed, where);
    const outcome second = play_seed(seed, where);
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

// Nothing else may be left of one that was cut down.
TEST(scripts, what_has_no_lanes_can_be_played) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    script what = make_script(seed);
    for (meeting_plan& each : what.meetings) each.lanes.clear();
    static_cast<void>(play(parse_script(to_text(what)), give_up, fabric::simulated));
  }
}

// So that those below are about them, too.
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

TEST(scripts, a_seed_repeats_its_run_in_shared_memory_bit_for_bit) { repeats(fabric::simulated_memory); }

TEST(scripts, a_seed_repeats_its_run_over_rails_bit_for_bit) { repeats(fabric::simulated_rails); }

TEST(scripts, what_is_sent_by_a_process_that_has_died_is_not_missed) {
  static_cast<void>(play_seed(13'009'788, fabric::simulated_memory));
}

TEST(scripts, a_message_that_recv_has_makes_room_for_another_before_its_task_goes_on) {
  static_cast<void>(play_seed(900'172'143, fabric::simulated));
}

#ifdef WEFT_WITH_VERBS
TEST(scripts, a_seed_repeats_its_run_on_a_device_bit_for_bit) { repeats(fabric::simulated_rdma); }

TEST(scripts, a_fault_that_comes_when_the_run_has_fallen_apart_finds_nobody) {
  for (const std::uint64_t seed : {8'001'379U, 10'005'298U}) static_cast<void>(play_seed(seed, fabric::simulated_rdma));
}

TEST(scripts, a_region_whose_release_is_stopped_when_the_run_has_fallen_apart_is_none_that_cannot_be_released) {
  static_cast<void>(play_seed(900'290'235, fabric::simulated_rdma));
}

TEST(scripts, a_lane_is_at_rest_when_it_is_destroyed_even_where_the_run_has_fallen_apart) {
  static_cast<void>(play_seed(900'321'804, fabric::simulated_rdma));
}

TEST(scripts, who_violates_writes_from_memory_of_his_own) {
  static_cast<void>(play_seed(900'119'069, fabric::simulated_rdma));
}

TEST(scripts, nobody_waits_for_memory_of_a_tight_pool_with_some_in_his_hands) {
  static_cast<void>(play_seed(900'101'287, fabric::simulated_rdma));
}

TEST(scripts, a_rail_that_is_given_up_is_not_looked_at_without_a_pause_until_it_has_ended) {
  static_cast<void>(play_seed(130, fabric::simulated_rails));
}

TEST(scripts, a_device_of_rails_has_room_for_the_deepest_connection) {
  static_cast<void>(play_seed(15'006'710, fabric::simulated_rails));
}
#endif

}  // namespace
}  // namespace weft::sim

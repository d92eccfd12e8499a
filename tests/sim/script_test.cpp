// SPDX-License-Identifier: Apache-2.0
#include "script.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

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

TEST(scripts, a_seed_repeats_its_run_bit_for_bit) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const script what = make_script(seed);
    const outcome first = play(what, give_up);
    const outcome second = play(what, give_up);
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::sim

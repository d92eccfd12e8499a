// SPDX-License-Identifier: Apache-2.0
#include "script.hpp"

#include <fmt/core.h>

#include <cstdlib>

#include "kit/test.hpp"
#include "run.hpp"

namespace weft::sim {
namespace {

// There is no way to go on: whoever waits, waits for ever.
void give_up(const std::string& why) {
  fmt::print(stderr, "{}\n", why);
  std::abort();
}

outcome play_seed(std::uint64_t seed, fabric where) {
  script what = make_script(seed);
  if (where == fabric::simulated_rails) give_rails(what);
  return play(what, give_up, where);
}

class scripts : public testing::TestWithParam<fabric> {};

// Else a seed that has failed would be of no use.
TEST_P(scripts, a_seed_repeats_its_run_bit_for_bit) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const outcome first = play_seed(seed, GetParam());
    const outcome second = play_seed(seed, GetParam());
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(of, scripts,
                         testing::Values(fabric::simulated, fabric::simulated_memory, fabric::simulated_rails));
#ifdef WEFT_WITH_VERBS
INSTANTIATE_TEST_SUITE_P(of_devices, scripts, testing::Values(fabric::simulated_rdma));
#endif

}  // namespace
}  // namespace weft::sim

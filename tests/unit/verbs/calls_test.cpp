// SPDX-License-Identifier: Apache-2.0
// Errors of the RDMA libraries, as their drivers report them.
#include <weft/net/verbs/calls.hpp>

#include "kit/test.hpp"

namespace weft::net::verbs {
namespace {

TEST(verbs_calls, a_driver_that_makes_nothing_and_says_nothing_is_not_taken_at_the_word_of_another_call) {
  ibv_context device{};
  device.ops.alloc_mw = [](ibv_pd*, ibv_mw_type) -> ibv_mw* { return nullptr; };
  ibv_pd pd{};
  pd.context = &device;
  errno = ENOMEM;
  ibv_mw* made = nullptr;
  EXPECT_EQ(rdma_calls::libraries().alloc_mw(&pd, IBV_MW_TYPE_2, &made), -EINVAL);
}

}  // namespace
}  // namespace weft::net::verbs

// SPDX-License-Identifier: Apache-2.0
// Errors of the RDMA libraries, as their drivers report them.
#include <weft/net/verbs/calls.hpp>

#include <dlfcn.h>

#include "kit/test.hpp"

namespace {

// What ibv_rereg_mr(3) returns without a word in errno; 0: the library is asked.
int rereg_code = 0;

}  // namespace

// In place of the library's, whose driver cannot be chosen.
extern "C" int ibv_rereg_mr(ibv_mr* region, int what, ibv_pd* pd, void* memory, std::size_t bytes, int access) {
  if (rereg_code != 0) return rereg_code;
  using call = int(ibv_mr*, int, ibv_pd*, void*, std::size_t, int);
  static auto* const library = reinterpret_cast<call*>(::dlsym(RTLD_NEXT, "ibv_rereg_mr"));
  return library(region, what, pd, memory, bytes, access);
}

namespace weft::net::verbs {
namespace {

// With EOPNOTSUPP a region would count as untouched that the device has lost.
TEST(verbs_calls, a_driver_that_says_nothing_of_why_a_region_is_lost_is_not_taken_at_the_word_of_another_call) {
  rereg_code = IBV_REREG_MR_ERR_CMD;
  errno = EOPNOTSUPP;
  int code = 0;
  const int result = rdma_calls::libraries().rereg_mr(nullptr, 0, nullptr, nullptr, 0, 0, &code);
  rereg_code = 0;
  EXPECT_EQ(code, IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(result, -EIO);
}

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

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/executor_state.hpp>

#include "failing_calls.hpp"
#include "kit/test.hpp"

namespace weft::net::iwarp {
namespace {

// Asks with the first allocation failing, with the second, and so on, until none is left to fail: how often it did.
template <class Lend>
int refusals(Lend lend) {
  for (std::int64_t failing = 1;; ++failing) {
    test::fail_call(failing);
    const auto lent = lend();
    const bool has_failed = test::call_has_failed();
    test::fail_call(0);
    EXPECT_EQ(lent == nullptr, has_failed);
    if (!has_failed) return static_cast<int>(failing - 1);
  }
}

TEST(lent_buffers, are_none_where_there_is_no_memory_for_them) {
  executor_state state(std::make_shared<software::domain>(system_calls::kernel(), "iwarp"));
  const int staging = refusals([&] { return state.lend_staging(); });
  const int batches = refusals([&] { return state.lend_batch(); });
  if (staging == 0) GTEST_SKIP() << "this sanitizer has an allocator of its own";
  EXPECT_GE(staging, 2);
  EXPECT_GE(batches, 2);
}

}  // namespace
}  // namespace weft::net::iwarp

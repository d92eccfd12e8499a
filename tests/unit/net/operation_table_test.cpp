// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/operation_table.hpp>

#include "kit/idle_link.hpp"
#include "kit/test.hpp"

namespace weft::net {
namespace {

// Refuses the ninth record once: memory is short then.
class scarce_link final : public test::idle_link {
 public:
  [[nodiscard]] bool furnish(work_request&) noexcept override { return ++calls_ != 9; }

 private:
  int calls_ = 0;
};

TEST(operation_table, goes_on_in_the_middle_of_a_block_once_there_is_memory_again) {
  scarce_link target;
  operation_table table(target, 64);
  EXPECT_TRUE(table.grow());
  EXPECT_TRUE(table.grow());
  EXPECT_EQ(table.made(), 8U);
  while (table.grow()) {
  }
  EXPECT_EQ(table.made(), 64U);
  for (std::size_t i = 0; i < table.made(); ++i) EXPECT_EQ(table[i].slot, i);
}

}  // namespace
}  // namespace weft::net

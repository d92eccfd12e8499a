// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/growing_table.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace weft::net {
namespace {

struct row {
  int value = 7;

  static inline bool memory_is_short = false;
  static void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return memory_is_short ? nullptr : std::malloc(bytes);
  }
  static void operator delete[](void* memory) noexcept { std::free(memory); }
};

constexpr std::size_t step = growing_table<row>::step;

class growing_table_test : public testing::Test {
 protected:
  ~growing_table_test() override { row::memory_is_short = false; }
};

TEST_F(growing_table_test, rows_stay_where_they_are) {
  growing_table<row> table(10 * step);
  std::vector<row*> places;
  for (std::size_t i = 0; i < table.limit(); ++i) {
    ASSERT_TRUE(table.grow_to(i + 1));
    EXPECT_EQ(table[i].value, 7);
    table[i].value = static_cast<int>(i);
    places.push_back(&table[i]);
  }
  for (std::size_t i = 0; i < table.limit(); ++i) {
    EXPECT_EQ(&table[i], places[i]);
    EXPECT_EQ(table[i].value, static_cast<int>(i));
  }
}

TEST_F(growing_table_test, has_its_first_rows_from_the_beginning) {
  growing_table<row> one(1);
  EXPECT_EQ(one[0].value, 7);
  growing_table<row> many(1000);
  row::memory_is_short = true;
  EXPECT_TRUE(many.grow_to(step));
  EXPECT_EQ(many[step - 1].value, 7);
  EXPECT_THROW(growing_table<row>(1), std::bad_alloc);
}

TEST_F(growing_table_test, a_shortage_of_memory_loses_nothing) {
  growing_table<row> table(10 * step);
  table[0].value = 1;
  row::memory_is_short = true;
  EXPECT_FALSE(table.grow_to(step + 1));
  EXPECT_EQ(table[0].value, 1);
  row::memory_is_short = false;
  EXPECT_TRUE(table.grow_to(3 * step));
  EXPECT_EQ(table[3 * step - 1].value, 7);
}

}  // namespace
}  // namespace weft::net

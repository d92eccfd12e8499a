// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/intrusive_list.hpp>

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace weft::detail {
namespace {

struct other_list;

struct numbered : list_hook<numbered>, list_hook<numbered, other_list> {
  explicit numbered(int what) : number(what) {}
  int number;
};

using list_of_numbers = intrusive_list<numbered>;

std::vector<int> numbers_in(const list_of_numbers& all) {
  std::vector<int> found;
  for (const numbered& each : all) found.push_back(each.number);
  return found;
}

class intrusive_list_test : public ::testing::Test {
 protected:
  ~intrusive_list_test() override {
    while (!all.empty()) all.pop_front();
  }

  std::array<numbered, 3> items{numbered(0), numbered(1), numbered(2)};
  list_of_numbers all;
};

TEST_F(intrusive_list_test, is_in_the_order_in_which_it_was_filled_at_either_end) {
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(all.first(), nullptr);
  all.push_back(items[1]);
  all.push_back(items[2]);
  all.push_front(items[0]);
  EXPECT_EQ(numbers_in(all), (std::vector{0, 1, 2}));
  EXPECT_EQ(&all.pop_front(), &items[0]);
  EXPECT_EQ(all.first(), &items[1]);
}

TEST_F(intrusive_list_test, loses_an_item_at_any_place_and_takes_it_again) {
  for (numbered& gone : items) {
    for (numbered& each : items) all.push_back(each);
    all.remove(gone);
    EXPECT_FALSE(all.contains(gone));
    EXPECT_EQ(numbers_in(all).size(), 2U);
    all.push_back(gone);
    EXPECT_EQ(numbers_in(all).back(), gone.number);
    while (!all.empty()) all.pop_front();
  }
}

TEST_F(intrusive_list_test, lets_the_item_go_at_which_an_iteration_stands) {
  for (numbered& each : items) all.push_back(each);
  std::vector<int> seen;
  for (numbered& each : all) {
    seen.push_back(each.number);
    all.remove(each);
  }
  EXPECT_EQ(seen, (std::vector{0, 1, 2}));
  EXPECT_TRUE(all.empty());
}

TEST_F(intrusive_list_test, takes_another_whole) {
  list_of_numbers more;
  all.push_back(items[0]);
  more.push_back(items[1]);
  more.push_back(items[2]);
  all.splice_back(more);
  EXPECT_EQ(numbers_in(all), (std::vector{0, 1, 2}));
  EXPECT_TRUE(more.empty());
  all.splice_back(more);  // nothing
  more.push_back(all.pop_front());
  EXPECT_EQ(numbers_in(all), (std::vector{1, 2}));
  more.splice_back(all);
  EXPECT_EQ(numbers_in(more), (std::vector{0, 1, 2}));
  while (!more.empty()) more.pop_front();
}

TEST_F(intrusive_list_test, holds_what_another_kind_of_list_holds_as_well) {
  intrusive_list<numbered, other_list> others;
  all.push_back(items[0]);
  others.push_back(items[0]);
  all.remove(items[0]);
  EXPECT_TRUE(others.contains(items[0]));
  others.remove(items[0]);
}

TEST_F(intrusive_list_test, does_not_hold_the_copy_of_an_item) {
  all.push_back(items[0]);
  const numbered copy(items[0]);
  EXPECT_FALSE(all.contains(copy));
}

}  // namespace
}  // namespace weft::detail

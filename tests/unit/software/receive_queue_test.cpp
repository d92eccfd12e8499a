// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/receive_queue.hpp>

#include "kit/test.hpp"

namespace weft::net::software {
namespace {

class receiver final : public receive_queue::taker {
 public:
  std::vector<receive_work*> got;

 private:
  void give(receive_work& work) noexcept override { got.push_back(&work); }
};

class receive_queue_test : public testing::Test {
 protected:
  receive_queue queue{3};
  std::array<receive_work, 3> works;
  receiver a;
  receiver b;
  receiver c;
};

TEST_F(receive_queue_test, hands_out_the_oldest_first) {
  for (int round = 0; round < 5; ++round) {
    for (receive_work& each : works) queue.post(each);
    for (receive_work& each : works) EXPECT_EQ(queue.take(a), &each);
  }
  EXPECT_TRUE(a.got.empty());
}

TEST_F(receive_queue_test, serves_those_who_found_none_in_the_order_of_their_asking_and_once) {
  for (receiver* const each : {&b, &a, &b, &c}) EXPECT_EQ(queue.take(*each), nullptr);
  for (receive_work& each : works) queue.post(each);
  EXPECT_EQ(b.got, std::vector{&works[0]});
  EXPECT_EQ(a.got, std::vector{&works[1]});
  EXPECT_EQ(c.got, std::vector{&works[2]});
  queue.post(works[1]);
  EXPECT_EQ(queue.take(c), &works[1]);
}

TEST_F(receive_queue_test, passes_over_those_who_have_gone) {
  for (receiver* const each : {&a, &b, &c}) EXPECT_EQ(queue.take(*each), nullptr);
  queue.forget(b);
  queue.forget(b);
  for (receive_work& each : works) queue.post(each);
  EXPECT_TRUE(b.got.empty());
  EXPECT_EQ(c.got, std::vector{&works[1]});
  EXPECT_EQ(queue.take(a), &works[2]);
}

}  // namespace
}  // namespace weft::net::software

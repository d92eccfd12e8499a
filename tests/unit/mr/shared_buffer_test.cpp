// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_buffer.hpp>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::in_use;

class shared_buffer_test : public ::testing::Test {};

#define TEST_F_SMALL_POOL(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (pool & source), test::with_small_pool(WEFT_SCRIPT))

TEST_F_SMALL_POOL(shared_buffer_test, goes_back_to_the_pool_with_its_last_copy) {
  buffer made = co_await source.allocate(100);
  std::byte* const where = made.data();
  {
    std::optional<shared_buffer> first(std::move(made));
    std::vector<shared_buffer> copies(3, *first);
    EXPECT_EQ(copies[2].bytes().data(), where);
    EXPECT_EQ(copies[2].size(), 100u);
    first.reset();
    copies.resize(1);
    EXPECT_NE(in_use(source), 0u);
    const shared_buffer moved = std::move(copies[0]);
    copies.clear();
    EXPECT_NE(in_use(source), 0u);
    EXPECT_EQ(moved.slice().data(), where);
  }
  EXPECT_EQ(in_use(source), 0u);
  { const shared_buffer only(co_await source.allocate(100)); }
  EXPECT_EQ(in_use(source), 0u);
}

TEST_F_SMALL_POOL(shared_buffer_test, is_kept_by_the_operations_that_use_it) {
  std::optional<shared_buffer> held(co_await source.allocate(100));
  pin operation = held->share();
  held.reset();
  EXPECT_NE(in_use(source), 0u);
  operation.reset();
  EXPECT_EQ(in_use(source), 0u);
}

TEST_F_SMALL_POOL(shared_buffer_test, copies_may_be_made_and_go_on_several_threads_at_once) {
  for (int round = 0; round < 100; ++round) {
    std::optional<shared_buffer> first(co_await source.allocate(100));
    std::byte* const where = first->slice().data();
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([copy = *first, where] {
        for (int turn = 0; turn < 100; ++turn) {
          const shared_buffer another = copy;
          EXPECT_EQ(another.slice().data(), where);
        }
      });
    first.reset();  // one of the threads gives it back
    threads.clear();
    EXPECT_EQ(in_use(source), 0u);
  }
}

TEST_F_SMALL_POOL(shared_buffer_test, is_not_made_of_a_buffer_that_is_being_written_or_was_moved_from) {
  buffer written = co_await source.allocate(100);
  result<pin> writer = pin::exclusive(written);
  EXPECT_EQ(test::code_thrown_by([&] { return shared_buffer(std::move(written)); }), errc::buffer_in_use);
  writer->reset();
  EXPECT_EQ(in_use(source), 0u);
  EXPECT_EQ(test::code_thrown_by([&] { return shared_buffer(buffer()); }), errc::invalid_argument);
}

}  // namespace
}  // namespace weft::mr

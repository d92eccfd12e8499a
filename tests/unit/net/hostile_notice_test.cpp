// SPDX-License-Identifier: Apache-2.0
// Peers that say what makes no sense of what they have written, and those that cannot be told.
#include <weft/mr/porting/porting.hpp>
#include <weft/mr/region/write_counter_core.hpp>

#include "net/support.hpp"

namespace weft::test {
namespace {

using mr::detail::told_counter;
using mr::detail::write_counter_core;

constexpr std::uint8_t counted_kind = 8;

bytes written(std::uint32_t counter, std::uint32_t writes) {
  return trailer_bytes(
      {.kind = net::message_kind::written, .credits = greeted_depth, .immediate = counter, .writes = writes});
}

class hostile_about_writes : public net_test {
 protected:
  static raw_client hearing() { return {.greeting = greeting_with(15, 1)}; }
};

TEST_F_AGAINST_RAW(hostile_about_writes, without_having_agreed_on_it) {
  const auto counter = std::make_shared<write_counter_core>();
  const told_counter told(counter);
  co_await raw.send_message(written(told.number(), 1));
  EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
  EXPECT_EQ(counter->value(), 0u);
}

TEST_F_AGAINST_RAW(hostile_about_writes, answers_that_nobody_waits_for, hearing()) {
  co_await raw.send_message({}, counted_kind, greeted_depth);
  EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
}

TEST_F_AGAINST_RAW(hostile_about_writes, by_numbers_that_count_nothing_are_answered_and_change_nothing, hearing()) {
  const auto counter = std::make_shared<write_counter_core>();
  told_counter told(counter);
  const std::uint32_t open = told.number();
  const auto tell = [&](std::uint32_t number, std::uint32_t writes) -> task<> {
    co_await raw.send_message(written(number, writes));
    const bytes answer = co_await raw.receive_fpdu();
    EXPECT_FALSE(answer.empty());
    if (answer.empty()) co_return;
    EXPECT_EQ(answer[answer.size() - net::trailer::bytes], std::byte{counted_kind});
  };
  co_await tell(open + 1, 7);
  EXPECT_EQ(counter->value(), 0u);
  co_await tell(open, net::trailer::most_writes);
  EXPECT_EQ(counter->value(), net::trailer::most_writes);
  told = told_counter();
  co_await tell(open, 1);
  EXPECT_EQ(counter->value(), net::trailer::most_writes);
}

}  // namespace
}  // namespace weft::test

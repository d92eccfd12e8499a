// SPDX-License-Identifier: Apache-2.0
// An end that did something else for longer than its peer has time: the peer's patience is not to blame.

#include "net/support.hpp"

namespace weft::test {
namespace {

class late_end : public net_test {};

// The peer reads nothing before, so that most of it still has to be sent.
TEST_F_AGAINST_RAW(late_end, that_closes_goes_on_with_what_it_has_in_flight, {.ours = {.close_timeout = 400s}}) {
  constexpr std::size_t much = std::size_t{16} << 20;  // more than the sockets hold
  auto memory = co_await pool().allocate(much);
  const mr::remote_region there(1, 0, much, mr::usage::write_dst);
  const auto write = [&]() -> task<> {
    const auto failure = co_await failure_of(peer.write(memory, there.slice(0, much)));
    EXPECT_FALSE(failure) << words_of(failure);
  };
  const auto close = [&]() -> task<> {
    co_await settle();
    co_await peer.close();
  };
  const auto come_back_late = [&]() -> task<> {
    for (int i = 0; i < 10; ++i) co_await settle();  // until the sockets are full
    jump(500s);
    EXPECT_GT((co_await raw.receive_rest()).size(), much);
    raw.finish();
  };
  co_await when_all(write(), close(), come_back_late());
}

}  // namespace
}  // namespace weft::test

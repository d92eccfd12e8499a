// SPDX-License-Identifier: Apache-2.0
// Back-pressure: credits, the receive budget, and what waits for what.
#include <deque>

#include "peers.hpp"

namespace weft::test {
namespace {

class credits : public peers {
 protected:
  /// Sends `count` one-byte messages, one after another, and counts those that the transport has taken.
  task<> send_many(net::connection& from, unsigned count, unsigned& sent) {
    for (unsigned i = 0; i < count; ++i) {
      co_await from.send(co_await filled(pool(), 1, i));
      ++sent;
    }
  }
};
WEFT_ON_EVERY_TRANSPORT(credits);

/// TEST_P_BETWEEN where receives run out.
#define TEST_P_TIGHT(suite, name, ...)                                \
  TEST_P_SCRIPT(suite, name, WEFT_ENDS_AND_TASKS, open_device(tight); \
                between_busy_peers(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

TEST_P_WINDOWS(credits, a_receiver_that_does_not_drain_stops_its_sender_at_receive_depth, options(),
               options({.receive_depth = 5})) {
  unsigned sent = 0;
  attempt sending(tasks, send_many(client, 12, sent));
  // A flush that comes back shows that everything before it has long been through.
  const auto at_client = co_await client.expose(co_await filled(pool(), 8, 1), mr::usage::read_src);
  while (sent < 5) co_await yield();
  co_await server.flush(at_client.remote());
  EXPECT_EQ(sent, 5u);
  EXPECT_FALSE(sending.ended());

  for (unsigned i = 0; i < 12; ++i) EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), i)) << i;
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_WINDOWS(credits, a_sender_that_waits_for_them_still_writes_and_reads_to_the_other_side, options(),
               options({.receive_depth = 2})) {
  unsigned sent = 0;
  attempt sending(tasks, send_many(client, 3, sent));
  while (sent < 2) co_await yield();
  co_await settle();

  // The stopped sender's peer goes on as it likes: its writes, its reads and the responses to them.
  const auto at_client = co_await expose_zeros(client, 100000);
  auto source = co_await filled(pool(), 100000, 3);
  co_await server.write(source, at_client.remote());
  auto copy = co_await zeroed(pool(), 100000);
  co_await server.read(copy, at_client.remote());
  EXPECT_TRUE(holds(copy.bytes(), 3));
  EXPECT_FALSE(sending.ended());

  for (int i = 0; i < 3; ++i) static_cast<void>(co_await server.recv_or_throw());
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_WINDOWS(credits, a_send_that_waits_for_them_holds_back_what_was_posted_after_it, options(),
               options({.receive_depth = 1})) {
  unsigned sent = 0;
  attempt sending(tasks, send_many(client, 2, sent));
  while (sent < 1) co_await yield();
  co_await settle();
  const auto there = co_await expose_zeros(server, 8);
  auto source = co_await filled(pool(), 8, 1);
  attempt writing(tasks, client.write(source, there.remote()));
  const auto at_client = co_await expose_zeros(client, 8, mr::usage::read_src);
  co_await server.flush(at_client.remote());
  EXPECT_FALSE(writing.ended());
  EXPECT_TRUE(is_zero(there.memory().bytes()));

  static_cast<void>(co_await server.recv_or_throw());
  EXPECT_TRUE(co_await succeeds(writing));
  static_cast<void>(co_await server.recv_or_throw());
  co_await sending.end();
}

TEST_P(credits, come_back_without_a_message_of_the_receivers_own) {
  for (const std::uint16_t depth : std::initializer_list<std::uint16_t>{1, 2, 3, 16}) {
    const auto shallow = options({.receive_depth = depth});
    between_busy_peers(
        [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
          unsigned sent = 0;
          attempt sending(tasks, send_many(client, 200, sent));
          for (unsigned i = 0; i < 200; ++i) EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), i)) << i;
          EXPECT_TRUE(co_await succeeds(sending));
        },
        options(), shallow);
  }
}

TEST_P_BETWEEN(credits, both_sides_may_send_at_each_others_limit_without_a_deadlock, options({.receive_depth = 1}),
               options({.receive_depth = 1})) {
  unsigned to_server = 0;
  unsigned to_client = 0;
  attempt a(tasks, send_many(client, 100, to_server));
  attempt b(tasks, send_many(server, 100, to_client));
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(co_await server.recv_or_throw());
    static_cast<void>(co_await client.recv_or_throw());
  }
  EXPECT_TRUE(co_await succeeds(a));
  EXPECT_TRUE(co_await succeeds(b));
}

TEST_P_TIGHT(credits, kept_payloads_count_against_the_receive_budget_until_they_are_let_go,
             options({.receive_size = 64, .receive_depth = 1}),
             options({.receive_size = 100'000, .receive_depth = 4})) {
  unsigned sent = 0;
  constexpr unsigned count = 60;  // three times what the budget holds
  attempt sending(tasks, send_many(client, count, sent));
  std::deque<net::message> kept;
  unsigned received = 0;
  const auto receive_all = [&]() -> task<> {
    while (received < count) {
      kept.push_back(co_await server.recv_or_throw());
      EXPECT_TRUE(holds(kept.back().bytes(), received)) << received;
      ++received;
    }
  };
  attempt receiving(tasks, receive_all());
  while (received < count) {
    // With every payload kept, the receiver comes to a stop; with one let go, it goes on.
    const unsigned before = received;
    for (int i = 0; i < 50; ++i) co_await yield();
    if (received == before && !kept.empty()) kept.pop_front();
  }
  EXPECT_TRUE(co_await succeeds(receiving));
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_TIGHT(credits, an_exhausted_receive_budget_leaves_the_send_budget_alone) {
  std::vector<mr::buffer> hoard;
  while (auto more = pool().try_allocate(16 << 10, mr::budget::receive)) hoard.push_back(*std::move(more));
  for (unsigned i = 0; i < 8; ++i) {
    co_await client.send(co_await filled(pool(), 100, i));
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), i));
  }
}

TEST_P_TIGHT(credits, a_connection_that_waits_for_receive_memory_can_be_closed,
             options({.receive_size = 64, .receive_depth = 1}),
             options({.receive_size = 180'000, .receive_depth = 3})) {
  unsigned sent = 0;
  attempt sending(tasks, send_many(client, 100, sent));
  std::vector<net::message> kept;
  const auto keep_all = [&]() -> task<> {
    for (;;) kept.push_back(co_await server.recv_or_throw());
  };
  attempt keeping(tasks, keep_all());
  while (pool().statistics().receive.waiting == 0) co_await yield();
  co_await server.close();
  EXPECT_EQ(co_await code_of(keeping), errc::closed);
  EXPECT_EQ(co_await code_of(sending), errc::peer_closed);
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Sends and receives that never wait.
#include "peers.hpp"

namespace weft::test {
namespace {

class tries : public peers {
 protected:
  /// What has arrived, once it has.
  static task<net::message> poll(net::connection& at) {
    for (;;) {
      if (auto message = at.try_recv()) co_return *std::move(message);
      co_await yield();
    }
  }
};
WEFT_ON_EVERY_TRANSPORT(tries);

TEST_P_BETWEEN(tries, carry_messages_in_order_beside_those_that_are_awaited) {
  for (unsigned i = 0; i < 60; ++i) {
    auto payload = co_await filled(pool(), 1 + i * 37 % 3000, i);
    if (i % 3 == 0) {
      co_await client.send(payload);
    } else {
      while (!client.try_send(payload, {.immediate = i})) co_await yield();
    }
    const auto message = co_await poll(server);
    EXPECT_TRUE(message.size() == 1 + i * 37 % 3000 && holds(message.bytes(), i)) << i;
    EXPECT_EQ(message.immediate, i % 3 == 0 ? std::nullopt : std::optional(i));
    while (payload.in_use()) co_await yield();
  }
  EXPECT_FALSE(server.try_recv());
}

TEST_P_BETWEEN(tries, send_nothing_that_would_wait_and_leave_the_buffer_as_it_was, options(),
               options({.receive_depth = 2})) {
  unsigned sent = 0;
  auto payload = co_await filled(pool(), 100, 0);
  while (client.try_send(std::move(payload))) {
    ++sent;
    payload = co_await filled(pool(), 100, sent);
  }
  EXPECT_EQ(sent, 2u);
  EXPECT_TRUE(payload && !payload.in_use() && holds(payload.bytes(), 2));
  for (unsigned i = 0; i < 2; ++i) EXPECT_TRUE(holds((co_await poll(server)).bytes(), i));
  while (!client.try_send(payload)) co_await yield();
  EXPECT_TRUE(holds((co_await poll(server)).bytes(), 2));

  // Nor do they overtake what waits.
  for (unsigned i = 0; i < 2; ++i) {
    while (!client.try_send(payload)) co_await yield();
  }
  attempt waiting(tasks, client.send(co_await filled(pool(), 100, 7)));
  co_await settle();
  EXPECT_FALSE(client.try_send(payload));
  for (unsigned i = 0; i < 2; ++i) EXPECT_TRUE(holds((co_await poll(server)).bytes(), 2));
  EXPECT_TRUE(holds((co_await poll(server)).bytes(), 7));
  co_await waiting.end();
}

TEST_P_BETWEEN(tries, keep_a_buffer_that_is_dropped_until_it_has_arrived) {
  constexpr std::size_t bytes = 4096;
  for (unsigned i = 0; i < 20; ++i) {
    mr::shared_buffer shared(co_await filled(pool(), bytes, i));
    while (!client.try_send(shared)) co_await yield();
    shared = mr::shared_buffer();
    auto given = co_await filled(pool(), bytes, i + 1);
    while (!client.try_send(std::move(given))) co_await yield();
    EXPECT_FALSE(given);
    for (unsigned k = 0; k < 2; ++k) EXPECT_TRUE(holds((co_await poll(server)).bytes(), i + k));
  }
}

TEST_P_BETWEEN(tries, are_refused_like_what_is_awaited, options(), options({.receive_size = 100})) {
  auto large = co_await filled(pool(), 101, 1);
  EXPECT_TRUE(failed_with(failure_thrown_by([&] { return client.try_send(large); }), errc::message_too_large));
  EXPECT_FALSE(large.in_use());
  const auto part = large.slice(0, 8);
  EXPECT_TRUE(
      failed_with(failure_thrown_by([&] { return client.try_send(part); }), errc::invalid_argument, "takes buffers"));
  mr::buffer gone;
  EXPECT_TRUE(failed_with(failure_thrown_by([&] { return client.try_send(gone); }), errc::invalid_argument));
  large.resize(50);
  while (!client.try_send(large)) co_await yield();
  co_await client.close();
  while (server.is_open()) co_await yield();
  EXPECT_TRUE(holds((co_await poll(server)).bytes(), 1));
  EXPECT_TRUE(failed_with(failure_thrown_by([&] { return server.try_recv(); }), errc::peer_closed));
  EXPECT_TRUE(failed_with(failure_thrown_by([&] { return client.try_recv(); }), errc::closed));
  EXPECT_TRUE(failure_thrown_by([&] { return client.try_send(large); }));
}

TEST_P_BETWEEN(tries, leave_a_message_to_the_task_that_waits_for_it) {
  std::optional<net::message> got;
  const auto receive = [&]() -> task<> { got = co_await server.recv(); };
  attempt waiting(tasks, receive());
  co_await settle();
  auto payload = co_await filled(pool(), 8, 3);
  while (!client.try_send(payload)) co_await yield();
  EXPECT_FALSE(server.try_recv());
  co_await waiting.end();
  EXPECT_TRUE(got && holds(got->bytes(), 3));
}

}  // namespace
}  // namespace weft::test

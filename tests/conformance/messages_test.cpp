// SPDX-License-Identifier: Apache-2.0
// Messages: sizes, order, and what is refused before anything is posted.

#include "equal_shares.hpp"

namespace weft::test {
namespace {

class messages : public peers {};
WEFT_ON_EVERY_TRANSPORT(messages);

TEST_P_BETWEEN(messages, arrive_as_they_were_sent_whatever_their_size) {
  for (const std::size_t bytes : {0u, 1u, 2u, 3u, 7u, 8u, 255u, 256u, 257u, 1000u, 4088u, 4095u, 4096u}) {
    co_await client.send(co_await filled(pool(), bytes, 3));
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.size(), bytes);
    EXPECT_TRUE(holds(message.bytes(), 3));
  }
}

TEST_P_BETWEEN(messages, of_bytes_that_are_copied_are_like_others, options(), options({.receive_size = 100})) {
  const auto send_text = [&]() -> task<> {
    const std::string text = "a text that goes with its frame";
    co_await client.send_bytes(text);
  };
  co_await send_text();
  const auto said = co_await server.recv_or_throw();
  EXPECT_EQ(said.text(), "a text that goes with its frame");
  co_await client.send_bytes(std::span<const std::byte>(), {.immediate = 7});
  const auto empty = co_await server.recv_or_throw();
  EXPECT_TRUE(empty.size() == 0 && empty.immediate == 7u && empty.text().empty());

  const std::vector<std::byte> large(101);
  EXPECT_TRUE(refused_with(co_await failure_of(client.send_bytes(large)), errc::message_too_large));
  auto late = client.send_bytes("late");
  { const net::connection dropped = std::move(client); }
  co_await server.ended();
  EXPECT_EQ(co_await code_of(std::move(late)), errc::closed);
}

TEST_P_BETWEEN(messages, larger_than_a_tcp_segment_and_than_a_socket_buffer_arrive, options(),
               options({.receive_size = 16 << 20, .receive_depth = 1})) {
  const std::size_t largest = std::min<std::uint64_t>(16 << 20, client.capabilities().max_message_bytes - 64);
  for (const std::size_t bytes : {std::size_t{64768}, std::size_t{100001}, largest}) {
    auto payload = co_await filled(pool(), bytes, 4);
    attempt sending(tasks, client.send(payload));
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.size(), bytes);
    EXPECT_TRUE(holds(message.bytes(), 4));
    EXPECT_TRUE(co_await succeeds(sending));
  }
}

TEST_P_BETWEEN(messages, too_large_for_the_peer_are_refused_before_they_are_posted_and_do_no_harm, options(),
               options({.receive_size = 100})) {
  EXPECT_EQ(client.capabilities().max_send_bytes, 100u);
  auto large = co_await filled(pool(), 101, 1);
  const auto failure = co_await failure_of(client.send(large));
  EXPECT_TRUE(failed_with(failure, errc::message_too_large));
  EXPECT_FALSE(failure && failure->posted());
  EXPECT_FALSE(large.in_use());

  co_await client.send(co_await filled(pool(), 100, 2));
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(message.size() == 100 && holds(message.bytes(), 2));
}

TEST_P_BETWEEN(messages, posted_together_arrive_in_the_order_of_posting_and_complete_in_it) {
  std::vector<unsigned> completed;
  const auto send_one = [&](unsigned number) -> task<> {
    co_await client.send(co_await filled(pool(), 10 + number, number));
    completed.push_back(number);
  };
  constexpr unsigned count = 40;  // more than the peer's receive_depth
  for (unsigned i = 0; i < count; ++i) tasks.spawn(send_one(i));
  for (unsigned i = 0; i < count; ++i) {
    const auto message = co_await server.recv_or_throw();
    EXPECT_TRUE(message.size() == 10 + i && holds(message.bytes(), i)) << i;
  }
  while (completed.size() < count) co_await yield();
  EXPECT_TRUE(std::is_sorted(completed.begin(), completed.end()));
}

TEST_P_BETWEEN(messages, go_both_ways_at_once) {
  constexpr unsigned count = 300;
  const auto send_all = [&](net::connection& from) -> task<> {
    for (unsigned i = 0; i < count; ++i) co_await from.send(co_await filled(pool(), 4096, i));
  };
  const auto receive_all = [&](net::connection& at) -> task<> {
    for (unsigned i = 0; i < count; ++i) EXPECT_TRUE(holds((co_await at.recv_or_throw()).bytes(), i)) << i;
  };
  attempt a(tasks, send_all(client));
  attempt b(tasks, send_all(server));
  attempt c(tasks, receive_all(client));
  attempt d(tasks, receive_all(server));
  for (attempt* each : {&a, &b, &c, &d}) {
    co_await each->end();
    EXPECT_TRUE(each->succeeded()) << each->words();
  }
}

TEST_P_BETWEEN(messages, a_server_may_speak_first) {
  co_await server.send(co_await filled(pool(), 11, 5));
  const auto message = co_await client.recv_or_throw();
  EXPECT_TRUE(message.size() == 11 && holds(message.bytes(), 5));
}

TEST_P_BETWEEN(messages, are_gathered_from_a_scatter_list) {
  const auto whole = co_await filled(pool(), 3000, 6);
  // As many as there may be, one of them empty.
  const std::size_t most = client.capabilities().max_parts - 1u;
  std::vector<mr::slice> parts;
  std::size_t taken = 0;
  while (parts.size() < most) {
    const std::size_t here = parts.size() + 1 == most ? 3000 - taken : parts.size() == 1 ? 0 : 1 + taken * 2;
    parts.push_back(whole.slice(taken, here));
    taken += here;
  }
  co_await client.send(std::span<const mr::slice>(parts));
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(message.size() == 3000 && holds(message.bytes(), 6));
}

TEST_P_BETWEEN(messages, gathered_from_too_many_parts_or_from_none_are_refused) {
  const auto whole = co_await filled(pool(), 8, 6);
  const std::vector<mr::slice> parts(client.capabilities().max_parts, whole.slice(0, 1));
  EXPECT_EQ(co_await code_of(client.send(std::span<const mr::slice>(parts))), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(client.send(std::span<const mr::slice>())), errc::invalid_argument);
}

TEST_P_BETWEEN(messages, from_a_buffer_that_was_moved_from_are_refused) {
  auto payload = co_await filled(pool(), 8, 6);
  const auto other = std::move(payload);
  EXPECT_EQ(co_await code_of(client.send(payload)), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(client.send(std::move(payload))), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(client.send(mr::slice())), errc::invalid_argument);
}

TEST_P_BETWEEN(messages, from_memory_of_another_device_are_refused) {
  auto other = open_device_of(GetParam());
  auto foreign = co_await other.pool().allocate(10);
  EXPECT_EQ(co_await code_of(client.send(foreign)), errc::wrong_device);
}

TEST_P_BETWEEN(messages, from_memory_that_is_not_registered_for_sending_are_refused) {
  const auto region = co_await register_zeros(100, {.usage = mr::usage::recv});
  EXPECT_EQ(co_await code_of(client.send(region.slice())), errc::access_denied);
}

TEST_P_BETWEEN(messages, from_registered_memory_of_the_users_own_arrive) {
  auto region = co_await register_zeros(100, {.usage = mr::usage::send});
  fill(region.bytes(), 8);
  co_await client.send(region.slice());
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(message.size() == 100 && holds(message.bytes(), 8));
  co_await region.release();
}

TEST_P_BETWEEN(messages, a_buffer_that_was_given_away_is_gone_even_if_the_send_is_refused) {
  auto payload = co_await filled(pool(), 5000, 1);
  EXPECT_EQ(co_await code_of(client.send(std::move(payload))), errc::message_too_large);
  EXPECT_FALSE(payload);
}

TEST_P_BETWEEN(messages, may_share_one_buffer) {
  auto payload = co_await filled(pool(), 64, 9);
  attempt first(tasks, client.send(payload));
  attempt second(tasks, client.send(payload));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 9));
  EXPECT_TRUE(co_await succeeds(first));
  EXPECT_TRUE(co_await succeeds(second));
  EXPECT_FALSE(payload.in_use());
}

TEST_P_BETWEEN(messages, may_share_a_buffer_that_goes_with_the_last_of_them) {
  mr::shared_buffer payload(co_await filled(pool(), 64, 9));
  attempt first(tasks, client.send(payload));
  attempt second(tasks, client.send(payload));
  payload = mr::shared_buffer();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 9));
  EXPECT_TRUE(co_await succeeds(first));
  EXPECT_TRUE(co_await succeeds(second));
}

TEST_P_BETWEEN(messages, receivers_are_served_in_the_order_of_their_coming) {
  std::vector<unsigned> order;
  const auto receive = [&](unsigned number) -> task<> {
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), number));
    order.push_back(number);
  };
  for (unsigned i = 0; i < 5; ++i) tasks.spawn(receive(i));
  co_await settle();
  for (unsigned i = 0; i < 5; ++i) co_await client.send(co_await filled(pool(), 50, i));
  while (order.size() < 5) co_await yield();
  EXPECT_EQ(order, (std::vector<unsigned>{0, 1, 2, 3, 4}));
}

TEST_P_BETWEEN(messages, a_task_that_sends_and_receives_without_end_lets_others_have_their_turn) {
  auto memory = co_await filled(pool(), 8, 1);
  bool is_over = false;
  const auto go_on = [&]() -> task<> {
    while (!is_over) {
      co_await client.send(memory);
      static_cast<void>(co_await server.recv_or_throw());
    }
  };
  attempt going_on(tasks, go_on());
  co_await yield();
  is_over = true;
  EXPECT_TRUE(co_await succeeds(going_on));
}

// So many that one look of the executor's does not serve them all.
TEST_P_TASK(messages, of_many_connections_that_talk_at_once_are_served_in_equal_shares) {
  constexpr std::size_t mean = 300;  // of which some pass until those that have gone cold are warm
  std::vector<connected> all;
  while (all.size() < 100) all.push_back(co_await connect_pair());
  const std::vector<std::size_t> served = co_await round_trips_of_each(pool(), all, mean);
  const auto [least, most] = std::ranges::minmax(served);
  EXPECT_GE(least, mean / 2);
  EXPECT_LE(most, mean * 2);
}

TEST_P_BETWEEN(messages, an_operation_that_was_never_awaited_does_nothing) {
  auto payload = co_await filled(pool(), 8, 1);
  {
    const auto forgotten = client.send(payload);
    const auto forgotten_too = server.recv();
  }
  EXPECT_FALSE(payload.in_use());
  co_await client.send(co_await filled(pool(), 9, 2));
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 9u);
}

TEST_P_BETWEEN(messages, bring_immediate_data_besides_any_payload) {
  EXPECT_TRUE(client.capabilities().immediate);
  for (const std::size_t bytes : {0u, 1u, 255u, 4088u, 4095u, 4096u}) {
    auto payload = co_await filled(pool(), bytes, 3);
    co_await client.send(payload, {.immediate = 0x01020304});
    const auto with = co_await server.recv_or_throw();
    EXPECT_TRUE(with.size() == bytes && holds(with.bytes(), 3));
    EXPECT_EQ(with.immediate, 0x01020304u);
    co_await client.send(payload);
    const auto without = co_await server.recv_or_throw();
    EXPECT_TRUE(without.size() == bytes && holds(without.bytes(), 3));
    EXPECT_FALSE(without.immediate || without.invalidated_key);
  }
}

TEST_P_BETWEEN(messages, of_every_form_take_the_same_options) {
  auto memory = co_await filled(pool(), 30, 2);
  const std::array<mr::slice, 2> parts = {memory.slice(0, 10), memory.slice(10, 20)};
  co_await client.send(memory, {.immediate = 1});
  co_await client.send(memory.slice(), {.immediate = 2});
  co_await client.send(std::span<const mr::slice>(parts), {.immediate = 3});
  co_await client.send(std::move(memory), {.immediate = 4});
  for (std::uint32_t i = 1; i <= 4; ++i) {
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.immediate, i);
    EXPECT_TRUE(message.size() == 30 && holds(message.bytes(), 2));
  }
}

TEST_P_BETWEEN(messages, with_immediate_data_wait_for_credits_like_others, options(), options({.receive_depth = 2})) {
  const auto send_all = [&]() -> task<> {
    auto note = co_await filled(pool(), 4, 1);
    for (std::uint32_t i = 0; i < 100; ++i) co_await client.send(note, {.immediate = i});
  };
  attempt sending(tasks, send_all());
  co_await settle();
  EXPECT_FALSE(sending.ended());
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ((co_await server.recv_or_throw()).immediate, i);
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_BETWEEN(messages, the_capabilities_tell_what_was_negotiated) {
  EXPECT_TRUE(client.capabilities().native);
  EXPECT_TRUE(client.capabilities().orderly_close);
  EXPECT_EQ(client.capabilities().max_send_bytes, options().receive_size);
  // A device has a checksum in any case: the invariant CRC of its packets. Whether an RNIC has one, it does not tell.
  const std::optional<bool> checked = GetParam().over_tcp ? GetParam().iwarp.checksum : !is_rnic();
  EXPECT_EQ(client.capabilities().checksum, checked);
  EXPECT_EQ(server.capabilities().checksum, checked);
  EXPECT_EQ(client.capabilities().outgoing_reads, server.capabilities().incoming_reads);
  EXPECT_FALSE(client.peer().empty());
  co_return;
}

}  // namespace
}  // namespace weft::test

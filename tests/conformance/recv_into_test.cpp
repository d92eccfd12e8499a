// SPDX-License-Identifier: Apache-2.0
// Messages that are received into memory of the program's.
#include "peers.hpp"

namespace weft::test {
namespace {

class recv_into : public peers {};
WEFT_ON_EVERY_TRANSPORT(recv_into);

TEST_P_BETWEEN(recv_into, stores_messages_of_any_size_that_are_there_or_still_to_come, options(),
               options({.receive_size = 100'000})) {
  for (const std::size_t bytes : {0u, 1u, 7u, 8u, 255u, 4088u, 4096u, 9000u, 70'000u, 100'000u}) {
    for (const bool is_there : {true, false}) {
      auto memory = co_await zeroed(pool(), bytes + 8);
      std::optional<net::receipt> said;
      const auto receive = [&]() -> task<> { said = co_await server.recv_into(memory); };
      if (is_there) {
        co_await client.send(co_await filled(pool(), bytes, 3), {.immediate = 7});
        co_await receive();
      } else {
        attempt waiting(tasks, receive());
        co_await settle();
        EXPECT_TRUE(memory.in_use());
        co_await client.send(co_await filled(pool(), bytes, 3), {.immediate = 7});
        co_await waiting.end();
      }
      EXPECT_TRUE(said && said->bytes == bytes && said->immediate == 7u);
      EXPECT_TRUE(holds(memory.bytes().first(bytes), 3));
      const auto behind = memory.bytes().subspan(bytes);
      EXPECT_TRUE(std::ranges::all_of(behind, [](std::byte each) { return each == std::byte{0}; }));
      EXPECT_FALSE(memory.in_use());
    }
  }
}

TEST_P_BETWEEN(recv_into, takes_turns_with_other_receives_in_the_order_of_their_coming) {
  auto memory = co_await zeroed(pool(), 64);
  std::vector<unsigned> order;
  const auto receive = [&](unsigned number) -> task<> {
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), number));
    order.push_back(number);
  };
  const auto receive_into = [&](unsigned number) -> task<> {
    const auto said = co_await server.recv_into(memory);
    EXPECT_TRUE(said && holds(memory.bytes().first(said->bytes), number));
    order.push_back(number);
  };
  tasks.spawn(receive(0));
  tasks.spawn(receive_into(1));
  tasks.spawn(receive(2));
  co_await settle();
  for (unsigned i = 0; i < 3; ++i) co_await client.send(co_await filled(pool(), 50, i));
  while (order.size() < 3) co_await yield();
  EXPECT_EQ(order, (std::vector<unsigned>{0, 1, 2}));
}

TEST_P_BETWEEN(recv_into, goes_on_for_more_messages_than_there_are_receives, options(), options({.receive_depth = 3})) {
  constexpr unsigned count = 300;
  const auto send_all = [&]() -> task<> {
    for (unsigned i = 0; i < count; ++i) co_await client.send(co_await filled(pool(), i % 97, i));
  };
  attempt sending(tasks, send_all());
  auto memory = co_await zeroed(pool(), 96);
  for (unsigned i = 0; i < count; ++i) {
    const auto said = co_await server.recv_into(memory);
    EXPECT_TRUE(said && said->bytes == i % 97 && holds(memory.bytes().first(said->bytes), i)) << i;
  }
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_TASK(recv_into, takes_messages_of_shared_receives) {
  auto queue = co_await share_receives({.depth = 3});
  if (!queue) co_return;
  connected ends = co_await connect_pair(options(), options({.receives = &*queue}));
  auto memory = co_await zeroed(pool(), 64);
  for (unsigned i = 0; i < 20; ++i) {
    co_await ends.client.send(co_await filled(pool(), 64, i));
    const auto said = co_await ends.server.recv_into(memory);
    EXPECT_TRUE(said && said->bytes == 64 && holds(memory.bytes(), i)) << i;
  }
}

TEST_P_BETWEEN(recv_into, fills_a_list_of_slices_in_order) {
  auto region = co_await register_zeros(300, {.usage = mr::usage::recv});
  const std::array<mr::slice, 3> parts{region.slice(200, 50), region.slice(100, 0), region.slice(0, 100)};
  co_await client.send(co_await filled(pool(), 120, 6));
  const auto said = co_await server.recv_into(parts);
  EXPECT_TRUE(said && said->bytes == 120);
  std::vector<std::byte> whole(region.bytes().begin() + 200, region.bytes().begin() + 250);
  whole.insert(whole.end(), region.bytes().begin(), region.bytes().begin() + 70);
  EXPECT_TRUE(holds(whole, 6));
  co_await region.release();
}

TEST_P_BETWEEN(recv_into, does_not_need_the_list_once_it_waits) {
  auto region = co_await register_zeros(200, {.usage = mr::usage::recv});
  auto other = co_await register_zeros(100, {.usage = mr::usage::recv});
  auto parts = std::make_unique<std::array<mr::slice, 2>>(std::array{region.slice(0, 50), region.slice(100, 100)});
  attempt waiting(tasks, server.recv_into(*parts));
  co_await settle();
  parts->fill(other.slice());
  parts.reset();
  co_await client.send(co_await filled(pool(), 120, 6));
  co_await waiting.end();
  std::vector<std::byte> whole(region.bytes().begin(), region.bytes().begin() + 50);
  whole.insert(whole.end(), region.bytes().begin() + 100, region.bytes().begin() + 170);
  EXPECT_TRUE(waiting.succeeded() && holds(whole, 6));
  co_await region.release();
  co_await other.release();
  const std::vector<mr::slice> many(server.capabilities().max_parts + 1u, mr::slice());
  EXPECT_EQ(co_await code_of(server.recv_into(std::span<const mr::slice>(many))), errc::invalid_argument);
}

TEST_P_BETWEEN(recv_into, leaves_a_message_that_does_not_fit_to_the_next_receive) {
  auto memory = co_await zeroed(pool(), 63);
  for (const bool is_there : {true, false}) {
    if (is_there) co_await client.send(co_await filled(pool(), 64, 2));
    std::optional<error> failure;
    const auto receive = [&]() -> task<> { failure = co_await failure_of(server.recv_into(memory)); };
    attempt receiving(tasks, receive());
    co_await settle();
    if (!is_there) co_await client.send(co_await filled(pool(), 64, 2));
    co_await receiving.end();
    EXPECT_TRUE(failed_with(failure, errc::message_too_large, "the next message has 64 bytes, the memory 63"));
    EXPECT_FALSE(memory.in_use());
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 2));
  }
}

TEST_P_BETWEEN(recv_into, refuses_memory_that_it_cannot_use_and_takes_no_message) {
  co_await client.send(co_await filled(pool(), 8, 1));
  auto other = open_device_of(GetParam());
  auto foreign = co_await other.pool().allocate(64);
  EXPECT_EQ(co_await code_of(server.recv_into(foreign)), errc::wrong_device);
  EXPECT_FALSE(foreign.in_use());
  const auto region = co_await register_zeros(100, {.usage = mr::usage::send});
  const auto for_sending = region.slice();
  EXPECT_EQ(co_await code_of(server.recv_into(for_sending)), errc::access_denied);
  EXPECT_EQ(co_await code_of(server.recv_into(mr::slice())), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(server.recv_into(std::span<const mr::slice>())), errc::invalid_argument);

  auto memory = co_await pool().allocate(64);
  auto moved = std::move(memory);
  EXPECT_EQ(co_await code_of(server.recv_into(memory)), errc::invalid_argument);
  attempt waiting(tasks, client.recv_into(moved));
  co_await settle();
  EXPECT_EQ(co_await code_of(server.recv_into(moved)), errc::buffer_in_use);
  waiting.stop();
  EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 1));
}

TEST_P_BETWEEN(recv_into, keeps_its_memory_until_it_ends_and_no_longer) {
  auto region = co_await register_zeros(64, {.usage = mr::usage::recv});
  const auto part = region.slice();
  attempt waiting(tasks, server.recv_into(part));
  auto given = co_await zeroed(pool(), 64);
  attempt forgotten(tasks, server.recv_into(given));
  co_await settle();
  EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  given.reset();  // the pool has it when the receive has ended
  co_await client.send(co_await filled(pool(), 64, 4));
  co_await waiting.end();
  EXPECT_TRUE(waiting.succeeded() && holds(region.bytes(), 4));
  co_await region.release();
  EXPECT_EQ(co_await code_once_stopped(forgotten), errc::canceled);
}

TEST_P_BETWEEN(recv_into, that_is_stopped_leaves_the_message_and_lets_its_memory_go) {
  auto memory = co_await zeroed(pool(), 64);
  for (unsigned i = 0; i < 50; ++i) {
    attempt receiving(tasks, server.recv_into(memory));
    co_await yield();
    attempt sending(tasks, client.send(co_await filled(pool(), 10, i)));
    for (unsigned turns = 0; turns < i % 7; ++turns) co_await yield();
    if (!receiving.ended()) receiving.stop();
    co_await receiving.end();
    co_await sending.end();
    EXPECT_FALSE(memory.in_use());
    if (receiving.succeeded()) {
      EXPECT_TRUE(holds(memory.bytes().first(10), i)) << i;
    } else {
      EXPECT_EQ(receiving.code(), errc::canceled);
      EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), i)) << i;
    }
  }
}

TEST_P_BETWEEN(recv_into, is_empty_after_an_orderly_end_and_fails_after_another) {
  auto memory = co_await zeroed(pool(), 64);
  attempt waiting(tasks, client.recv_into(memory));
  co_await settle();
  std::optional<net::receipt> said = net::receipt{};
  const auto receive = [&]() -> task<> {
    auto other = co_await zeroed(pool(), 64);
    said = co_await server.recv_into(other);
  };
  attempt hearing(tasks, receive());
  co_await client.close();
  co_await hearing.end();
  EXPECT_TRUE(hearing.succeeded() && !said);
  EXPECT_EQ(co_await code_of(waiting), errc::closed);
  EXPECT_FALSE(memory.in_use());
}

TEST_P_BETWEEN(recv_into, is_told_of_immediate_data_behind_a_write) {
  if (!has_windows() || !client.capabilities().write_immediate) co_return;
  const auto open = co_await expose_zeros(server, 8);
  auto memory = co_await zeroed(pool(), 8);
  attempt writing(tasks, client.write(co_await filled(pool(), 8, 1), open.remote(), {.immediate = 9}));
  const auto said = co_await server.recv_into(memory);
  EXPECT_TRUE(said && said->bytes == 0 && said->immediate == 9u);
  co_await writing.end();
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Whatever order a provider has, a connection keeps its own.

#include "peers.hpp"
#include "wild_library.hpp"

namespace weft::test {
namespace {

task<mr::buffer> note(mr::pool& pool, std::uint32_t number) {
  auto made = co_await pool.allocate(sizeof number);
  std::memcpy(made.data(), &number, sizeof number);
  co_return made;
}

std::uint32_t number_in(std::span<const std::byte> bytes) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// Of each four messages the first number is written ahead.
task<> messages_behind_writes(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::uint32_t rounds = 200;
  auto room = co_await pool.allocate(sizeof(std::uint32_t));
  const auto open = co_await server.expose(std::move(room), mr::usage::write_dst | mr::usage::read_src);
  const auto sending = [&]() -> task<> {
    for (std::uint32_t i = 0; i < rounds; i += 4) {
      auto word = co_await note(pool, i);
      auto first = co_await note(pool, i);
      auto second = co_await note(pool, i + 1);
      auto third = co_await note(pool, i + 2);
      auto fourth = co_await note(pool, i + 3);
      std::array members{client.write(word, open.remote()), client.send(first), client.send(second), client.send(third),
                         client.send(fourth)};
      co_await client.batch(members);
    }
  };
  const auto receiving = [&]() -> task<> {
    for (std::uint32_t i = 0; i != rounds; ++i) {
      const auto message = co_await server.recv_or_throw();
      EXPECT_EQ(number_in(message.bytes()), i);
      EXPECT_GE(number_in(open.memory().bytes()) + 3, i);  // placed before the messages that follow it
    }
  };
  co_await when_all(sending(), receiving());
}

task<> writes_and_reads(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::uint32_t rounds = 40;
  auto room = co_await pool.allocate(sizeof(std::uint32_t));
  const auto open = co_await server.expose(std::move(room), mr::usage::write_dst | mr::usage::read_src);
  for (std::uint32_t i = 0; i < rounds; i += 2) {
    auto first = co_await note(pool, i);
    auto second = co_await note(pool, i + 1);
    auto seen = co_await note(pool, UINT32_MAX);
    auto other = co_await note(pool, UINT32_MAX);
    auto third = co_await note(pool, UINT32_MAX);
    std::array members{client.write(first, open.remote()), client.write(second, open.remote()),
                       client.read(seen, open.remote()), client.read(other, open.remote()),
                       client.read(third, open.remote())};
    co_await client.batch(members);
    for (const mr::buffer* each : {&seen, &other, &third}) EXPECT_EQ(number_in(each->bytes()), i + 1);
  }
}

task<> changes_between_writes_and_reads(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::uint64_t rounds = 20;
  const auto word = [&](std::uint64_t value) -> task<mr::buffer> {
    auto made = co_await pool.allocate(sizeof value);
    std::memcpy(made.data(), &value, sizeof value);
    co_return made;
  };
  auto room = co_await pool.allocate(sizeof rounds);
  const auto open =
      co_await server.expose(std::move(room), mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst);
  for (std::uint64_t i = 0; i != rounds; ++i) {
    auto first = co_await word(i * 100);
    auto seen = co_await word(0);
    std::array<net::transfer, 4> members{client.write(first, open.remote()), client.fetch_add(open.remote(), 1),
                                         client.fetch_add(open.remote(), 1), client.read(seen, open.remote())};
    co_await client.batch(members);
    std::uint64_t last = 0;
    std::memcpy(&last, seen.data(), sizeof last);
    EXPECT_EQ(members[1].value(), i * 100);
    EXPECT_EQ(members[2].value(), i * 100 + 1);
    EXPECT_EQ(last, i * 100 + 2);
  }
}

task<> immediate_data_behind_writes(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::uint32_t rounds = 40;
  auto room = co_await pool.allocate(sizeof rounds);
  const auto open = co_await server.expose(std::move(room), mr::usage::write_dst);
  for (std::uint32_t i = 0; i != rounds; ++i) {
    auto word = co_await note(pool, i);
    co_await client.write(word, open.remote(), {.immediate = i});
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.immediate, i);
    EXPECT_EQ(number_in(open.memory().bytes()), i);
  }
}

class fabric_wild : public testing::TestWithParam<unsigned> {};

TEST_P(fabric_wild, order_of_completions_changes_nothing_for_messages_and_writes) {
  wild_library library(GetParam(), {.ordered = true});
  with_peers(library, messages_behind_writes);
}

TEST_P(fabric_wild, order_of_completions_changes_nothing_for_writes_and_reads) {
  wild_library library(GetParam(), {.ordered = true});
  with_peers(library, writes_and_reads);
}

TEST_P(fabric_wild, order_of_requests_changes_nothing_for_messages_and_writes) {
  wild_library library(GetParam(), {});
  with_peers(library, messages_behind_writes);
}

TEST_P(fabric_wild, order_of_requests_changes_nothing_for_writes_and_reads) {
  wild_library library(GetParam(), {});
  with_peers(library, writes_and_reads);
  EXPECT_GT(library.overtaken(), 0u);  // reads, which may
}

TEST_P(fabric_wild, order_of_requests_changes_nothing_for_atomic_operations) {
  wild_library library(GetParam(), {});
  with_peers(library, changes_between_writes_and_reads);
}

TEST_P(fabric_wild, order_of_requests_changes_nothing_for_immediate_data) {
  wild_library library(GetParam(), {});
  with_peers(library, immediate_data_behind_writes);
}

TEST_P(fabric_wild, strangers_are_not_listened_to) {
  wild_library library(GetParam(), {.ordered = true, .strangers = true});
  with_peers(library, messages_behind_writes);
}

INSTANTIATE_TEST_SUITE_P(seeds, fabric_wild, testing::Range(1u, 13u));

TEST(fabric_sleep, asks_the_provider_whether_there_is_something_left) {
  shy_library library;
  with_peers(library, [](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    for (int rounds = 0; rounds != 20; ++rounds) {
      co_await exchange(client, server, pool);
      co_await exchange(server, client, pool);
    }
    co_await writes_and_reads(client, server, pool);
  });
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Many writes, or reads, that are one operation.
#include <numeric>
#include <random>

#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t block = 4096;

class lists : public peers {
 protected:
  // Blocks with the number of each in every byte of it, modulo 251.
  task<mr::buffer> numbered(std::size_t count) {
    auto memory = co_await pool().allocate(count * block);
    for (std::size_t i = 0; i != count; ++i) {
      std::memset(memory.data() + i * block, static_cast<int>(i % 251) + 1, block);
    }
    co_return memory;
  }
};
WEFT_ON_EVERY_TRANSPORT(lists);

std::vector<std::uint32_t> shuffled(std::uint32_t count, unsigned seed) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(seed));
  return numbers;
}

std::vector<net::block_pair> pairs_in_place(std::uint32_t count) {
  std::vector<net::block_pair> pairs(count);
  for (std::uint32_t i = 0; i != count; ++i) pairs[i] = {.local = i, .remote = i};
  return pairs;
}

// A bijection of the first `count` blocks of each side.
std::vector<net::block_pair> random_pairs(std::uint32_t count) {
  const auto locals = shuffled(count, 1);
  const auto remotes = shuffled(count, 2);
  std::vector<net::block_pair> pairs(count);
  for (std::uint32_t i = 0; i != count; ++i) pairs[i] = {.local = locals[i], .remote = remotes[i]};
  return pairs;
}

bool is_block(std::span<const std::byte> memory, std::size_t place, std::size_t number) {
  const auto wanted = static_cast<std::byte>(number % 251 + 1);
  return std::ranges::all_of(memory.subspan(place * block, block), [&](std::byte each) { return each == wanted; });
}

task<> end_of(net::list_operation& list) { co_await list; }

TEST_P_WINDOWS(lists, write_each_of_their_elements) {
  constexpr std::array<std::size_t, 6> sizes{1, 0, 4096, 65536, 3, 300'001};
  constexpr std::size_t all = 400'000;
  const auto there = co_await expose_zeros(server, all);
  auto source = co_await filled(pool(), all, 1);
  std::vector<net::list_part> parts;
  std::size_t place = 0;
  for (const std::size_t bytes : sizes) {
    parts.push_back({source.slice().subslice(place, bytes), there.remote().slice(place, bytes)});
    place += bytes + 7;
  }
  auto push = client.write(parts);
  EXPECT_EQ(push.size(), sizes.size());
  EXPECT_EQ(push.done(), 0u);
  co_await push;
  EXPECT_EQ(push.done(), sizes.size());
  co_await client.flush(there.remote());
  place = 0;
  const auto written = there.memory().bytes();
  for (const std::size_t bytes : sizes) {
    EXPECT_TRUE(std::ranges::equal(written.subspan(place, bytes), source.bytes().subspan(place, bytes))) << bytes;
    EXPECT_TRUE(is_zero(written.subspan(place + bytes, 7))) << bytes;
    place += bytes + 7;
  }
}

// One layer of each page, say: every other block here, and every third one there.
TEST_P_WINDOWS(lists, of_blocks_keep_the_stride_of_either_end) {
  constexpr std::uint32_t count = 10;
  const auto there = co_await expose_zeros(server, 3 * count * block);
  auto source = co_await numbered(2 * count);
  const auto pairs = random_pairs(count);
  const net::block_list all{.local = source.slice().subslice(block, (2 * count - 1) * block),
                            .remote = there.remote().slice(2 * block, (3 * count - 2) * block),
                            .block_bytes = block,
                            .local_stride = 2 * block,
                            .remote_stride = 3 * block,
                            .blocks = pairs};
  co_await client.write(all);
  co_await client.flush(there.remote());
  const std::span<const std::byte> written = there.memory().bytes();
  for (const net::block_pair& each : pairs) {
    EXPECT_TRUE(is_block(written, each.remote * 3 + 2, each.local * 2 + 1));
    EXPECT_TRUE(is_zero(written.subspan(each.remote * 3 * block, 2 * block)));
  }
}

TEST_P_WINDOWS(lists, read_what_they_name) {
  constexpr std::uint32_t count = 100;
  auto there = co_await numbered(count);
  const auto open = co_await server.expose(std::move(there), mr::usage::read_src);
  auto sink = co_await zeroed(pool(), count * block);
  const auto pairs = random_pairs(count);
  const net::block_list all{.local = sink.slice(), .remote = open.remote(), .block_bytes = block, .blocks = pairs};
  co_await client.read(all);
  for (const net::block_pair& each : pairs) EXPECT_TRUE(is_block(sink.bytes(), each.local, each.remote));

  auto two = co_await zeroed(pool(), 2 * block);
  const std::array<net::list_part, 2> parts{
      net::list_part{two.slice().subslice(0, block), open.remote().slice(7 * block, block)},
      net::list_part{two.slice().subslice(block, block), open.remote().slice(3 * block, block)}};
  co_await client.read(parts);
  EXPECT_TRUE(is_block(two.bytes(), 0, 7) && is_block(two.bytes(), 1, 3));
}

TEST_P_WINDOWS(lists, notify_the_peer_once_when_everything_is_in_place) {
  if (!client.capabilities().write_immediate) co_return;
  constexpr std::uint32_t count = 500;
  const auto there = co_await expose_zeros(server, count * block);
  auto source = co_await numbered(count);
  const auto pairs = random_pairs(count);
  const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  attempt pushing(tasks, client.write(all, {.immediate = 42}));
  const auto note = co_await server.recv_or_throw();
  EXPECT_EQ(note.immediate, 42u);
  EXPECT_EQ(note.size(), 0u);
  for (const net::block_pair& each : pairs) EXPECT_TRUE(is_block(there.memory().bytes(), each.remote, each.local));
  EXPECT_TRUE(co_await succeeds(pushing));
  co_await client.send(co_await filled(pool(), 1, 1));
  EXPECT_FALSE((co_await server.recv_or_throw()).immediate);
}

// Until the peer has room for the notification, it has all of the list but the last element.
TEST_P_WINDOWS(lists, hold_back_their_last_element_until_the_peer_has_room_for_the_notification, options(),
               options({.receive_depth = 2})) {
  if (!client.capabilities().write_immediate) co_return;
  constexpr std::uint32_t count = 40;
  const auto there = co_await expose_zeros(server, count * block);
  auto source = co_await filled(pool(), count * block, 1);
  for (int i = 0; i != 2; ++i) co_await client.send(source.slice().subslice(0, 1));
  const auto pairs = pairs_in_place(count);
  const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  auto push = client.write(all, {.immediate = 7});
  attempt running(tasks, end_of(push));
  while (push.done() != count - 1 && !running.ended()) co_await yield();
  co_await settle();
  EXPECT_EQ(push.done(), count - 1);
  EXPECT_FALSE(running.ended());
  EXPECT_EQ(client.statistics().waiting, 1u);
  for (int i = 0; i != 2; ++i) EXPECT_EQ((co_await server.recv_or_throw()).size(), 1u);
  EXPECT_EQ((co_await server.recv_or_throw()).immediate, 7u);
  EXPECT_TRUE(std::ranges::equal(there.memory().bytes(), source.bytes()));
  EXPECT_TRUE(co_await succeeds(running));
}

TEST_P_WINDOWS(lists, longer_than_the_queue_are_followed_by_what_is_awaited_later, options({.send_depth = 2})) {
  constexpr std::uint32_t count = 200;
  const auto there = co_await expose_zeros(server, count * block);
  auto source = co_await numbered(count);
  const auto pairs = random_pairs(count);
  const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  auto note = co_await filled(pool(), 5, 3);
  attempt pushing(tasks, client.write(all));
  attempt following(tasks, client.send(note));
  EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 3));
  for (const net::block_pair& each : pairs) EXPECT_TRUE(is_block(there.memory().bytes(), each.remote, each.local));
  EXPECT_TRUE(co_await succeeds(pushing));
  EXPECT_TRUE(co_await succeeds(following));
}

TEST_P_WINDOWS(lists, keep_their_regions_busy_from_their_start_to_their_end, options(), options({.receive_depth = 1})) {
  auto region = co_await register_zeros(4 * block, {.usage = mr::usage::write_src});
  const auto there = co_await expose_zeros(server, 4 * block);
  const std::array<net::list_part, 2> parts{
      net::list_part{region.slice(0, block), there.remote().slice(0, block)},
      net::list_part{region.slice(block, block), there.remote().slice(block, block)}};
  const std::array<net::block_pair, 2> pairs{net::block_pair{2, 2}, net::block_pair{3, 3}};
  const net::block_list blocks{
      .local = region.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  co_await client.send(co_await filled(pool(), 1, 1));
  auto note = co_await filled(pool(), 2, 2);
  attempt holding_back(tasks, client.send(note));
  attempt of_parts(tasks, client.write(parts));
  attempt of_blocks(tasks, client.write(blocks));
  co_await settle();
  EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  EXPECT_EQ(co_await code_once_stopped(of_parts), errc::canceled);
  EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  for (int i = 0; i < 2; ++i) static_cast<void>(co_await server.recv_or_throw());
  EXPECT_TRUE(co_await succeeds(of_blocks));
  co_await holding_back.end();
  co_await region.release();
}

TEST_P_WINDOWS(lists, of_two_tasks_go_one_after_the_other) {
  constexpr std::uint32_t count = 100;
  const auto there = co_await expose_zeros(server, count * block);
  auto first = co_await zeroed(pool(), count * block);
  auto second = co_await numbered(count);
  const auto pairs = pairs_in_place(count);
  const net::block_list before{.local = first.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  const net::block_list behind{
      .local = second.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  attempt a(tasks, client.write(before));
  attempt b(tasks, client.write(behind));
  EXPECT_TRUE(co_await succeeds(a));
  EXPECT_TRUE(co_await succeeds(b));
  co_await client.flush(there.remote());
  for (std::uint32_t i = 0; i != count; ++i) EXPECT_TRUE(is_block(there.memory().bytes(), i, i));
}

TEST_P_WINDOWS(lists, of_nothing_end_at_once_and_notify_nobody) {
  const auto there = co_await expose_zeros(server, block);
  auto source = co_await zeroed(pool(), block);
  co_await client.write(std::span<const net::list_part>());
  co_await client.read(std::span<const net::list_part>());
  const net::block_list none{.local = source.slice(), .remote = there.remote(), .block_bytes = block};
  co_await client.write(none);
  EXPECT_EQ(co_await code_of(client.write(none, {.immediate = 1})), errc::invalid_argument);
}

TEST_P_WINDOWS(lists, with_an_element_that_cannot_be_are_refused_whole) {
  const auto there = co_await expose_zeros(server, 3 * block);
  auto source = co_await filled(pool(), 3 * block, 1);
  const mr::slice mine = source.slice();
  const mr::remote_slice& theirs = there.remote();
  const mr::remote_slice closed(theirs.key(), theirs.address(), block, mr::usage::read_src);
  const net::list_part good{mine.subslice(0, block), theirs.slice(0, block)};
  struct {
    net::list_part bad;
    errc code;
  } const cases[] = {
      {{mine.subslice(0, block), theirs.slice(0, block - 1)}, errc::invalid_argument},
      {{mine.subslice(0, block), closed}, errc::access_denied},
      {{mr::slice(), theirs.slice(0, 0)}, errc::invalid_argument},
  };
  for (const auto& [bad, code] : cases) {
    const std::array<net::list_part, 3> parts{good, bad, good};
    auto push = client.write(parts);
    const auto failure = co_await failure_of(end_of(push));
    EXPECT_TRUE(failed_with(failure, code, "element 1 of a list of 3"));
    EXPECT_TRUE(failure && !failure->posted());
    EXPECT_EQ(push.done(), 0u);
  }
  constexpr std::uint32_t last = UINT32_MAX;
  struct {
    net::block_pair pair;
    std::uint64_t bytes;
    std::uint64_t stride;
    errc code;
  } const blocks[] = {
      {{.local = 3, .remote = 0}, block, 0, errc::out_of_range},
      {{.local = 0, .remote = 3}, block, 0, errc::out_of_range},
      {{.local = last, .remote = last}, block, UINT64_MAX / 2, errc::out_of_range},
      {{.local = 1, .remote = 0}, block, 2 * block + 1, errc::out_of_range},
      {{.local = 0, .remote = 0}, 3 * block + 1, 0, errc::out_of_range},
      {{.local = 0, .remote = 0}, UINT64_MAX, 0, errc::out_of_range},
      {{.local = 0, .remote = 0}, 0, 0, errc::invalid_argument},
  };
  for (const auto& [pair, bytes, stride, code] : blocks) {
    const std::array<net::block_pair, 2> pairs{net::block_pair(), pair};
    const net::block_list all{.local = mine,
                              .remote = theirs,
                              .block_bytes = bytes,
                              .local_stride = stride,
                              .remote_stride = stride,
                              .blocks = pairs};
    EXPECT_EQ(co_await code_of(client.write(all)), code) << pair.local << " " << bytes << " " << stride;
  }
  co_await client.flush(theirs);
  EXPECT_TRUE(is_zero(there.memory().bytes()));
  co_await client.write(std::span<const net::list_part>(&good, 1));
  co_await client.flush(theirs);
  EXPECT_FALSE(is_zero(there.memory().bytes()));
}

TEST_P_WINDOWS(lists, are_awaited_once) {
  const auto there = co_await expose_zeros(server, block);
  auto source = co_await filled(pool(), block, 1);
  const std::array<net::list_part, 1> parts{net::list_part{source.slice(), there.remote()}};
  auto push = client.write(parts);
  EXPECT_FALSE(co_await failure_of(end_of(push)));
  EXPECT_EQ(co_await code_of(end_of(push)), errc::invalid_argument);
  const auto forgotten = client.write(parts);
  EXPECT_EQ(forgotten.done(), 0u);
}

// What is with the transport then is waited for, and counted.
TEST_P_WINDOWS(lists, that_are_stopped_at_any_turn_have_written_what_they_say, options({.send_depth = 4})) {
  constexpr std::uint32_t count = 30;
  const auto pairs = pairs_in_place(count);
  auto source = co_await numbered(count);
  for (int turns = 0; turns != 20; ++turns) {
    auto there = co_await expose_zeros(server, count * block);
    const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
    auto push = client.write(all);
    attempt running(tasks, end_of(push));
    for (int i = 0; i != turns + 1; ++i) co_await yield();
    running.stop();
    co_await running.end();
    EXPECT_TRUE(running.succeeded() || running.code() == errc::canceled) << running.words();
    EXPECT_EQ(running.succeeded(), push.done() == count);
    co_await client.flush(there.remote());
    const std::span<const std::byte> written = there.memory().bytes();
    for (std::size_t i = 0; i != push.done(); ++i) EXPECT_TRUE(is_block(written, i, i)) << i;
    EXPECT_TRUE(is_zero(written.subspan(push.done() * block))) << push.done();
    static_cast<void>(co_await there.revoke());
  }
}

TEST_P_WINDOWS(lists, of_a_connection_that_ends_say_at_which_element) {
  constexpr std::uint32_t count = 1000;
  const auto there = co_await expose_zeros(server, 10 * block);
  auto source = co_await filled(pool(), 10 * block, 1);
  std::vector<net::block_pair> pairs;
  for (std::uint32_t i = 0; i != count; ++i) pairs.push_back({.local = i % 10, .remote = i % 10});
  const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  auto push = client.write(all);
  attempt running(tasks, end_of(push));
  while (push.done() == 0 && !running.ended()) co_await yield();
  client.abort();
  co_await running.end();
  if (running.succeeded()) co_return;  // it was faster
  EXPECT_EQ(running.code(), errc::closed) << running.words();
  EXPECT_NE(running.words().find("of a list of 1000"), std::string::npos) << running.words();
  EXPECT_LT(push.done(), count);
}

TEST_P_BETWEEN(lists, on_a_connection_that_has_ended_are_refused) {
  client.abort();
  EXPECT_EQ(co_await code_of(client.write(std::span<const net::list_part>())), errc::closed);
  net::connection gone = std::move(client);
  EXPECT_EQ(co_await code_of(client.write(std::span<const net::list_part>())), errc::closed);
}

TEST_P_WINDOWS(lists, count_as_so_many_writes) {
  constexpr std::uint32_t count = 100;
  const auto there = co_await expose_zeros(server, count * block);
  auto source = co_await zeroed(pool(), count * block);
  const auto pairs = random_pairs(count);
  const net::block_list all{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  co_await client.write(all);
  const auto counted = client.statistics();
  EXPECT_EQ(counted.writes.posted, count);
  EXPECT_EQ(counted.writes.bytes, count * block);
  EXPECT_EQ(counted.in_flight, 0u);
  EXPECT_EQ(counted.waiting, 0u);
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Several operations awaited as one.

#include "peers.hpp"

namespace weft::test {
namespace {

class batches : public peers {};
WEFT_ON_EVERY_TRANSPORT(batches);

TEST_P_WINDOWS(batches, end_when_all_of_their_members_have) {
  const auto there = co_await expose_zeros(server, 200000);
  auto source = co_await filled(pool(), 200000, 1);
  auto copy = co_await zeroed(pool(), 200000);
  auto note = co_await filled(pool(), 5, 2);
  std::array members{client.write(source, there.remote()), client.flush(there.remote()), client.send(note),
                     client.read(copy, there.remote())};
  attempt all(tasks, client.batch(members));
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(holds(message.bytes(), 2) && holds(there.memory().bytes(), 1));
  EXPECT_TRUE(co_await succeeds(all));
  EXPECT_TRUE(holds(copy.bytes(), 1));
  EXPECT_FALSE(source.in_use() || copy.in_use() || note.in_use());
  for (const net::transfer& each : members) EXPECT_FALSE(each.failure());
}

TEST_P_BETWEEN(batches, of_nothing_end_at_once) { co_await client.batch({}); }

TEST_P_WINDOWS(batches, larger_than_the_queue_go_through_it_in_order, options({.send_depth = 2})) {
  const auto there = co_await expose_zeros(server, 40);
  std::vector<mr::buffer> sources;
  std::vector<net::transfer> members;
  for (unsigned i = 0; i < 40; ++i) sources.push_back(co_await filled(pool(), 1, i));
  // Each byte is written twice; the later one counts.
  for (unsigned i = 0; i < 80; ++i) {
    members.push_back(client.write(sources[(i + i / 40) % 40], there.remote().slice(i % 40, 1)));
  }
  co_await client.batch(members);
  co_await client.flush(there.remote());
  for (unsigned i = 0; i < 40; ++i) EXPECT_TRUE(holds(there.memory().bytes().subspan(i, 1), (i + 1) % 40)) << i;
}

TEST_P_WINDOWS(batches, that_wait_for_credits_hold_back_what_follows, options(), options({.receive_depth = 1})) {
  const auto there = co_await expose_zeros(server, 5);
  auto note = co_await filled(pool(), 5, 1);
  std::array members{client.send(note), client.send(note), client.write(note, there.remote())};
  attempt all(tasks, client.batch(members));
  attempt behind(tasks, client.flush(there.remote()));
  co_await settle();
  EXPECT_TRUE(is_zero(there.memory().bytes()));
  EXPECT_FALSE(all.ended() || behind.ended());
  for (int i = 0; i < 2; ++i) static_cast<void>(co_await server.recv_or_throw());
  co_await behind.end();
  EXPECT_TRUE(all.succeeded() && behind.succeeded());
  EXPECT_TRUE(holds(there.memory().bytes(), 1));
}

TEST_P_WINDOWS(batches, with_a_member_that_is_refused_do_nothing) {
  const auto there = co_await expose_zeros(server, 8);
  auto source = co_await filled(pool(), 8, 1);
  auto given = co_await filled(pool(), 8, 1);
  std::array members{client.write(source, there.remote()), client.write(source, there.remote().slice(0, 7)),
                     client.write(std::move(given), there.remote())};
  const auto failure = co_await failure_of(client.batch(members));
  EXPECT_TRUE(failure && failure->code() == errc::invalid_argument && !failure->posted());
  for (const net::transfer& each : members) {
    EXPECT_TRUE(refused_with(each.failure(), errc::invalid_argument));
  }
  EXPECT_FALSE(source.in_use());
  co_await client.flush(there.remote());
  EXPECT_TRUE(is_zero(there.memory().bytes()));
}

TEST_P_WINDOWS(batches, that_use_a_buffer_twice_and_write_to_it_are_refused) {
  const auto there = co_await expose_zeros(server, 8);
  auto source = co_await filled(pool(), 8, 1);
  std::array members{client.write(source, there.remote()), client.read(source, there.remote())};
  EXPECT_EQ(co_await code_of(client.batch(members)), errc::buffer_in_use);
  EXPECT_FALSE(source.in_use());
}

TEST_P_WINDOWS(batches, of_operations_that_have_been_awaited_or_are_another_connections_are_refused) {
  const auto there = co_await expose_zeros(server, 8);
  const auto here = co_await expose_zeros(client, 8);
  std::array foreign{client.flush(there.remote()), server.flush(here.remote())};
  EXPECT_TRUE(refused_with(co_await failure_of(client.batch(foreign)), errc::invalid_argument));
  std::array once{client.flush(there.remote()), client.flush(there.remote())};
  co_await client.batch(once);
  EXPECT_EQ(co_await code_of(client.batch(once)), errc::invalid_argument);
}

TEST_P_WINDOWS(batches, that_are_over_are_not_touched_by_members_that_are_awaited_again) {
  const auto there = co_await expose_zeros(server, 8);
  std::array done{client.flush(there.remote()), client.flush(there.remote())};
  co_await client.batch(done);
  std::array refused{client.flush(there.remote()), client.flush(there.remote().slice(0, 0))};
  EXPECT_EQ(co_await code_of(client.batch(refused)), errc::invalid_argument);
  const auto await_again = [](net::transfer* const one) -> task<> { co_await *one; };
  for (net::transfer* const member : {&done[0], &refused[0]}) {
    EXPECT_EQ(co_await code_of(await_again(member)), errc::invalid_argument);
  }
  EXPECT_EQ(co_await code_of(std::move(done[1])), errc::invalid_argument);
  co_await client.flush(there.remote());
}

// It may have ended already, while its task has yet to go on.
TEST_P_BETWEEN(batches, refuse_a_member_that_is_awaited_alone_before_their_task_goes_on) {
  auto memory = co_await filled(pool(), 8, 1);
  std::array once{client.send(memory)};
  const auto whole = [&]() -> task<> { co_await client.batch(once); };
  const auto member = [&]() -> task<> {
    net::transfer* const one = &once[0];  // see docs/gcc-12.md, "An operation by reference"
    co_await *one;
  };
  attempt together(tasks, whole());
  attempt alone(tasks, member());
  static_cast<void>(co_await server.recv_or_throw());
  co_await together.end();
  EXPECT_EQ(co_await code_of(alone), errc::invalid_argument);
  EXPECT_TRUE(together.succeeded()) << together.words();
  { const net::connection closed = std::move(client); }
  EXPECT_FALSE(co_await server.recv()) << "it was sent twice";
}

TEST_P_WINDOWS(batches, throw_the_first_failure_and_keep_those_of_all_members) {
  const auto there = co_await expose_zeros(server, 10);
  std::optional<mr::remote_region> revoked;
  const std::size_t before = pool().statistics().send.in_use_bytes;
  {
    const auto gone = co_await expose_zeros(server, 10);
    revoked = gone.remote();
  }
  co_await until_lent_buffers_return(before);
  auto a = co_await filled(pool(), 10, 1);
  auto b = co_await zeroed(pool(), 10);
  auto c = co_await zeroed(pool(), 10);
  std::array members{client.write(a, there.remote()), client.flush(there.remote()), client.read(b, *revoked),
                     client.read(c, there.remote())};
  const auto failure = co_await failure_of(client.batch(members));
  EXPECT_TRUE(failure && failure->posted());
  std::size_t failed = 0;
  for (const net::transfer& each : members) {
    if (!each.failure()) continue;
    const bool is_first = failed++ == 0;
    EXPECT_EQ(is_first, failure && std::string_view(failure->what()) == each.failure()->what());
  }
  EXPECT_TRUE(members[2].failure() && members[2].failure()->code() == errc::remote_access);
  if (GetParam().forgives_late_accesses) {
    EXPECT_FALSE(members[0].failure() || members[1].failure() || members[3].failure());
  } else {
    EXPECT_TRUE(members[3].failure() && members[3].failure()->posted());
  }
  EXPECT_TRUE(is_zero(b.bytes()));
}

TEST_P_WINDOWS(batches, stopped_return_at_once_if_their_memory_is_the_pools) {
  const auto there = co_await expose_zeros(server, long_transfer);
  auto source = co_await filled(pool(), long_transfer, 1);
  auto given = co_await filled(pool(), 100, 2);
  std::array members{client.write(source, there.remote()), client.flush(there.remote()),
                     client.write(std::move(given), there.remote().slice(0, 100))};
  attempt all(tasks, client.batch(members));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(all), errc::canceled);
  EXPECT_TRUE(all.posted());
  EXPECT_TRUE(source.in_use());
  co_await client.flush(there.remote());  // the connection is unharmed, and all of it took effect
  EXPECT_FALSE(source.in_use());
  EXPECT_TRUE(holds(there.memory().bytes().first(100), 2));
}

TEST_P_BETWEEN(batches, stopped_while_they_wait_for_credits_send_nothing_more, options(),
               options({.receive_depth = 1})) {
  auto note = co_await filled(pool(), 5, 1);
  auto other = co_await filled(pool(), 6, 1);
  std::array members{client.send(note), client.send(note), client.send(note)};
  attempt all(tasks, client.batch(members));
  attempt behind(tasks, client.send(other));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(all), errc::canceled);
  EXPECT_FALSE(members[0].failure());
  for (std::size_t i : {1u, 2u}) EXPECT_TRUE(members[i].failure() && !members[i].failure()->posted());
  EXPECT_FALSE(note.in_use());
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 5u);
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 6u);
  EXPECT_TRUE(co_await succeeds(behind));
}

TEST_P_WINDOWS(batches, stopped_with_borrowed_memory_end_the_connection_and_only_then_return) {
  auto region = co_await register_zeros(long_transfer, {.usage = mr::usage::write_src});
  const auto there = co_await expose_zeros(server, long_transfer);
  auto source = co_await filled(pool(), 8, 1);
  std::array members{client.write(source, there.remote().slice(0, 8)), client.write(region.slice(), there.remote()),
                     client.flush(there.remote())};
  attempt all(tasks, client.batch(members));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(all), errc::canceled);
  EXPECT_TRUE(members[1].failure() && members[1].failure()->posted());
  co_await region.release();  // not busy: nobody uses it any more
  EXPECT_EQ(co_await code_of(client.recv()), errc::closed);
}

std::error_code code_of_value(const net::transfer& one) {
  return code_thrown_by([&] { return one.value(); });
}

TEST_P_BETWEEN(batches, of_atomics_yield_the_value_of_each) {
  if (!client.capabilities().atomics) co_return;
  const auto there = co_await expose_zeros(server, 16, open_wide | mr::usage::atomic_dst);
  const auto word = there.remote().slice(8, 8);
  std::array<net::transfer, 4> members{client.fetch_add(word, 5), client.compare_swap(word, 5, 9),
                                       client.compare_swap(word, 5, 1), client.fetch_add(word, 1)};
  EXPECT_EQ(code_of_value(members[1]), errc::invalid_argument) << "there is none yet";
  co_await client.batch(members);
  EXPECT_EQ(members[0].value(), 0u);
  EXPECT_EQ(members[1].value(), 5u);
  EXPECT_EQ(members[2].value(), 9u);
  EXPECT_EQ(members[3].value(), 9u);
  EXPECT_EQ(co_await client.fetch_add(word, 1), 10u);
}

TEST_P_BETWEEN(batches, may_mix_atomics_with_other_operations) {
  if (!client.capabilities().atomics) co_return;
  const auto there = co_await expose_zeros(server, 16, open_wide | mr::usage::atomic_dst);
  const auto word = there.remote().slice(8, 8);
  auto source = co_await filled(pool(), 8, 1);
  auto copy = co_await zeroed(pool(), 8);
  std::array<net::transfer, 4> members{client.write(source, word), client.flush(word), client.fetch_add(word, 1),
                                       client.read(copy, word)};
  co_await client.batch(members);
  std::uint64_t written = 0;
  std::memcpy(&written, source.bytes().data(), sizeof written);
  std::uint64_t seen = 0;
  std::memcpy(&seen, copy.bytes().data(), sizeof seen);
  EXPECT_EQ(members[2].value(), written);
  EXPECT_EQ(code_of_value(members[3]), errc::invalid_argument) << "it is no atomic operation";
  EXPECT_EQ(seen, written + 1);
}

TEST_P_BETWEEN(batches, of_atomics_that_are_refused_or_stopped_have_no_value) {
  if (!client.capabilities().atomics) co_return;
  const auto there = co_await expose_zeros(server, 16, open_wide | mr::usage::atomic_dst);
  const auto word = there.remote().slice(8, 8);
  std::array<net::transfer, 2> refused{client.fetch_add(word, 1), client.fetch_add(there.remote().slice(4, 8), 1)};
  EXPECT_EQ(co_await code_of(client.batch(refused)), errc::misaligned);
  for (const auto& each : refused) EXPECT_EQ(code_of_value(each), errc::misaligned);
  std::array<net::transfer, 2> stopped{client.fetch_add(word, 1), client.fetch_add(word, 1)};
  attempt all(tasks, client.batch(stopped));
  co_await yield();
  all.stop();
  co_await all.end();
  for (const auto& each : stopped) EXPECT_EQ(code_of_value(each), errc::canceled);
  co_await client.flush(there.remote());
  EXPECT_EQ(co_await client.fetch_add(word, 0), 2u);
}

TEST_P_WINDOWS(batches, with_a_member_that_was_moved_from_are_refused) {
  const auto there = co_await expose_zeros(server, 8);
  std::array members{client.flush(there.remote()), client.flush(there.remote())};
  std::array taken{std::move(members[1])};
  EXPECT_EQ(co_await code_of(client.batch(members)), errc::invalid_argument);
  co_await client.batch(std::span(members).first(1));  // the other is none the worse for it
  co_await client.batch(taken);
}

// Nobody could tell the batch any more that it has ended, nor the transport where its memory is.
TEST_P(batches, end_the_program_if_a_member_is_destroyed_in_the_middle) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto misuse = [&] {
    between_busy_peers([&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
      const auto there = co_await expose_zeros(server, 8);
      std::vector<net::transfer> members;
      for (int i = 0; i < 2; ++i) members.push_back(client.flush(there.remote()));
      attempt all(tasks, client.batch(members));
      co_await yield();
      members.clear();
    });
  };
  EXPECT_DEATH(misuse(), "a member of a batch was destroyed while the batch is in progress");
}

TEST_P_WINDOWS(batches, end_with_their_connection) {
  const auto there = co_await expose_zeros(server, long_transfer);
  auto source = co_await filled(pool(), long_transfer, 1);
  std::array members{client.write(source, there.remote()), client.flush(there.remote())};
  attempt all(tasks, client.batch(members));
  co_await yield();
  client.abort();
  EXPECT_EQ(co_await code_of(all), errc::closed);
  for (const net::transfer& each : members) EXPECT_TRUE(each.failure() && each.failure()->posted());
}

}  // namespace
}  // namespace weft::test

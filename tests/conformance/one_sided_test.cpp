// SPDX-License-Identifier: Apache-2.0
// Writes, reads and flushes.

#include "peers.hpp"

namespace weft::test {
namespace {

class one_sided : public peers {};
WEFT_ON_EVERY_TRANSPORT(one_sided);

TEST_P_WINDOWS(one_sided, what_was_written_is_in_its_place_once_a_flush_has_completed) {
  for (const std::size_t bytes : {1u, 7u, 4096u, 65536u, 1000003u}) {
    const auto target = co_await expose_zeros(server, bytes + 2);
    auto source = co_await pool().allocate(bytes, mr::budget::receive);
    fill(source.bytes(), 1);
    co_await client.write(source, target.remote().slice(1, bytes));
    co_await client.flush(target.remote().slice(0, 1));
    const auto all = target.memory().bytes();
    EXPECT_TRUE(holds(all.subspan(1, bytes), 1)) << bytes;
    EXPECT_TRUE(all.front() == std::byte{0} && all.back() == std::byte{0}) << bytes;
  }
}

TEST_P_WINDOWS(one_sided, what_was_read_is_what_was_there) {
  for (const std::size_t bytes : {1u, 7u, 4096u, 65536u, 1000003u}) {
    const auto source = co_await server.expose(co_await filled(pool(), bytes, 2), mr::usage::read_src);
    auto target = co_await zeroed(pool(), bytes);
    co_await client.read(target, source.remote());
    EXPECT_TRUE(holds(target.bytes(), 2)) << bytes;
  }
}

TEST_P(one_sided, sixty_four_mebibytes_go_in_one_operation) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  open_device({.max_bytes = std::size_t{512} << 20});
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    constexpr std::size_t bytes = std::size_t{64} << 20;
    if (client.capabilities().max_message_bytes < bytes) co_return;
    const auto target = co_await expose_zeros(server, bytes);
    { co_await client.write(co_await filled(pool(), bytes, 7), target.remote()); }
    co_await client.flush(target.remote());
    EXPECT_TRUE(holds(target.memory().bytes(), 7));
    auto copy = co_await pool().allocate(bytes);
    co_await client.read(copy, target.remote());
    EXPECT_TRUE(holds(copy.bytes(), 7));
  });
}

TEST_P_WINDOWS(one_sided, nothing_is_written_and_nothing_read_where_there_is_nothing) {
  const auto target = co_await expose_zeros(server, 16);
  auto empty = co_await pool().allocate(0);
  co_await client.write(empty, target.remote().slice(3, 0));
  co_await client.read(empty, target.remote().slice(3, 0));
  EXPECT_EQ(co_await code_of(client.flush(target.remote().slice(3, 0))), errc::invalid_argument);
  co_await client.flush(target.remote());
  EXPECT_TRUE(is_zero(target.memory().bytes()));
}

TEST_P_WINDOWS(one_sided, a_write_is_in_its_place_when_a_later_message_arrives) {
  constexpr std::size_t bytes = 300000;
  const auto target = co_await expose_zeros(server, bytes);
  auto source = co_await filled(pool(), bytes, 3);
  auto note = co_await filled(pool(), 1, 1);
  attempt writing(tasks, client.write(source, target.remote()));
  attempt sending(tasks, client.send(note));
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(holds(target.memory().bytes(), 3));
  EXPECT_TRUE(co_await succeeds(writing));
  EXPECT_TRUE(co_await succeeds(sending));
}

TEST_P_WINDOWS(one_sided, a_read_sees_the_writes_before_it) {
  constexpr std::size_t bytes = 200000;
  const auto there = co_await expose_zeros(server, bytes);
  auto source = co_await filled(pool(), bytes, 4);
  auto copy = co_await zeroed(pool(), bytes);
  attempt writing(tasks, client.write(source, there.remote()));
  attempt reading(tasks, client.read(copy, there.remote()));
  co_await reading.end();
  EXPECT_TRUE(writing.succeeded());
  EXPECT_TRUE(holds(copy.bytes(), 4));
}

TEST_P_WINDOWS(one_sided, operations_of_all_kinds_complete_in_posting_order) {
  const auto there = co_await expose_zeros(server, 50000);
  auto memory = co_await filled(pool(), 50000, 1);
  auto note = co_await filled(pool(), 8, 1);
  std::vector<int> completed;
  const auto one = [&](int number) -> task<> {
    switch (number % 4) {
      case 0:
        co_await client.write(memory, there.remote());
        break;
      case 1:
        co_await client.flush(there.remote());
        break;
      case 2:
        co_await client.send(note);
        break;
      default:
        co_await client.write(note, there.remote().slice(0, 8));
        break;
    }
    completed.push_back(number);
  };
  for (int i = 0; i < 48; ++i) tasks.spawn(one(i));
  for (int i = 0; i < 12; ++i) static_cast<void>(co_await server.recv_or_throw());
  while (completed.size() < 48) co_await yield();
  EXPECT_TRUE(std::is_sorted(completed.begin(), completed.end()));
}

TEST_P_WINDOWS(one_sided, memory_that_is_prepared_is_used_like_any_other) {
  const auto there = co_await expose_zeros(server, 100);
  auto prepared = client.prepare(there.remote().slice(10, 80));
  auto memory = co_await filled(pool(), 30, 7);
  co_await prepared.write(memory, 50);
  co_await prepared.write(memory.slice(0, 10));
  co_await client.flush(there.remote());
  auto seen = co_await zeroed(pool(), 30);
  co_await prepared.read(seen, 50);
  EXPECT_TRUE(holds(seen.bytes(), 7));
  co_await prepared.read(seen.slice(0, 10));
  EXPECT_TRUE(std::ranges::equal(seen.bytes().first(10), memory.bytes().first(10)));
  EXPECT_EQ(co_await code_of(prepared.write(memory, 51)), errc::out_of_range);
  auto once = prepared.read(seen, 50);
  const auto await_it = [](net::prepared_transfer* what) -> task<> { co_await *what; };
  co_await await_it(&once);
  EXPECT_EQ(co_await code_of(await_it(&once)), errc::invalid_argument);
  std::optional<net::connection> moved(std::move(client));
  co_await prepared.read(seen, 50);
  EXPECT_EQ(co_await code_of(client.prepare(there.remote()).read(seen, 0)), errc::closed);
  moved.reset();
  EXPECT_FALSE(co_await server.recv());
  EXPECT_EQ(co_await code_of(prepared.read(seen, 50)), errc::closed);
  EXPECT_FALSE(seen.in_use());
}

TEST_P_WINDOWS(one_sided, a_task_that_writes_and_reads_without_end_lets_others_have_their_turn) {
  const auto target = co_await expose_zeros(server, 8);
  auto memory = co_await filled(pool(), 8, 1);
  bool is_over = false;
  const auto go_on = [&]() -> task<> {
    while (!is_over) {
      co_await client.write(memory, target.remote());
      co_await client.read(memory, target.remote());
    }
  };
  attempt going_on(tasks, go_on());
  co_await yield();
  is_over = true;
  EXPECT_TRUE(co_await succeeds(going_on));
}

TEST_P_WINDOWS(one_sided, more_reads_than_the_peer_allows_at_a_time_wait_for_one_another, options(),
               options({.incoming_reads = 2})) {
  EXPECT_EQ(client.capabilities().outgoing_reads, 2);
  constexpr std::size_t bytes = 70000;
  const auto there = co_await server.expose(co_await filled(pool(), bytes, 5), mr::usage::read_src);
  int done = 0;
  const auto read_one = [&]() -> task<> {
    auto copy = co_await zeroed(pool(), bytes);
    co_await client.read(copy, there.remote());
    EXPECT_TRUE(holds(copy.bytes(), 5));
    ++done;
  };
  for (int i = 0; i < 20; ++i) tasks.spawn(read_one());
  while (done < 20) co_await yield();
}

TEST_P_WINDOWS(one_sided, more_operations_than_slots_wait_for_one_another, options({.send_depth = 2})) {
  const auto there = co_await expose_zeros(server, 100);
  std::vector<std::size_t> completed;
  const auto write_one = [&](std::size_t number) -> task<> {
    co_await client.write(co_await filled(pool(), 1, static_cast<unsigned>(number)), there.remote().slice(number, 1));
    completed.push_back(number);
  };
  for (std::size_t i = 0; i < 100; ++i) tasks.spawn(write_one(i));
  while (completed.size() < 100) co_await yield();
  EXPECT_TRUE(std::is_sorted(completed.begin(), completed.end()));
  co_await client.flush(there.remote());
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(holds(there.memory().bytes().subspan(i, 1), static_cast<unsigned>(i)));
  }
}

TEST_P_WINDOWS(one_sided, both_sides_write_and_read_at_once) {
  constexpr std::size_t bytes = 2'000'000;
  const auto at_client = co_await expose_zeros(client, bytes);
  const auto at_server = co_await expose_zeros(server, bytes);
  const auto exchange = [&](net::connection& self, const mr::remote_region& there, unsigned seed) -> task<> {
    for (unsigned i = 0; i < 4; ++i) {
      auto source = co_await filled(pool(), bytes, seed + i);
      co_await self.write(source, there);
      auto copy = co_await zeroed(pool(), bytes);
      co_await self.read(copy, there);
      EXPECT_TRUE(holds(copy.bytes(), seed + i));
    }
  };
  attempt a(tasks, exchange(client, at_server.remote(), 10));
  attempt b(tasks, exchange(server, at_client.remote(), 20));
  EXPECT_TRUE(co_await succeeds(a));
  EXPECT_TRUE(co_await succeeds(b));
}

TEST_P_REGIONS(one_sided, memory_of_the_users_own_serves_as_source_sink_and_target) {
  auto here = co_await register_zeros(10000, {.usage = mr::usage::write_src | mr::usage::read_dst});
  auto there = co_await register_zeros(10000, {.usage = open_wide});
  fill(here.bytes(), 1);
  co_await client.write(here.slice(), there.remote());
  fill(here.bytes(), 2);
  co_await client.read(here.slice(0, 5000), there.remote().slice(0, 5000));
  EXPECT_TRUE(holds(there.bytes(), 1));
  EXPECT_TRUE(holds(here.bytes().first(5000), 1));
  co_await here.release();
  co_await there.release();
}

TEST_P_WINDOWS(one_sided, what_the_peer_has_not_allowed_is_refused_before_it_is_posted) {
  const auto write_only = co_await expose_zeros(server, 8, mr::usage::write_dst);
  const auto read_only = co_await expose_zeros(server, 8, mr::usage::read_src);
  auto local = co_await filled(pool(), 8, 1);
  EXPECT_TRUE(refused_with(co_await failure_of(client.write(local, read_only.remote())), errc::access_denied));
  EXPECT_TRUE(refused_with(co_await failure_of(client.read(local, write_only.remote())), errc::access_denied));
  EXPECT_EQ(co_await code_of(client.flush(write_only.remote())), errc::access_denied);
  co_await client.write(local, write_only.remote());  // no harm was done
}

TEST_P_WINDOWS(one_sided, memory_opened_for_flushing_can_be_flushed) {
  const auto target = co_await expose_zeros(server, 8, mr::usage::write_dst | mr::usage::flush_visibility);
  auto source = co_await filled(pool(), 8, 1);
  co_await write_and_flush(client, source, target.remote());
  EXPECT_TRUE(holds(target.memory().bytes(), 1));
}

TEST_P_WINDOWS(one_sided, a_write_is_gathered_from_a_scatter_list_and_a_read_scattered_to_one) {
  const auto there = co_await expose_zeros(server, 60000);
  const auto whole = co_await filled(pool(), 60000, 4);
  const std::array<mr::slice, 8> all = {whole.slice(0, 1),       whole.slice(1, 0),       whole.slice(1, 299),
                                        whole.slice(300, 700),   whole.slice(1000, 1),    whole.slice(1001, 255),
                                        whole.slice(1256, 1744), whole.slice(3000, 57000)};
  const std::array<mr::slice, 4> fewer = {whole.slice(0, 1), whole.slice(1, 0), whole.slice(1, 299),
                                          whole.slice(300, 59700)};
  const bool takes_all = client.capabilities().max_parts >= all.size();
  const std::span<const mr::slice> parts = takes_all ? std::span<const mr::slice>(all) : fewer;
  co_await client.write(parts, there.remote());
  co_await client.flush(there.remote());
  EXPECT_TRUE(holds(there.memory().bytes(), 4));

  fill(there.memory().bytes(), 5);
  co_await client.read(parts, there.remote());
  EXPECT_TRUE(holds(whole.bytes(), 5));
}

TEST_P_WINDOWS(one_sided, a_scatter_list_may_change_once_its_operation_has_been_posted) {
  const auto there = co_await expose_zeros(server, 3000);
  fill(there.memory().bytes(), 6);
  const auto whole = co_await filled(pool(), 3000, 1);
  std::array<mr::slice, 2> parts = {whole.slice(0, 1000), whole.slice(1000, 2000)};
  const auto read = [&]() -> task<> { co_await client.read(parts, there.remote()); };
  const auto change = [&]() -> task<> {
    parts = {};
    co_return;
  };
  auto reading = read();  // first, so that it is under way when the list changes
  co_await when_all(std::move(reading), change());
  EXPECT_TRUE(holds(whole.bytes(), 6));
}

TEST_P_BETWEEN(one_sided, a_write_is_in_its_place_when_its_immediate_data_arrives) {
  if (!client.capabilities().write_immediate) co_return;
  const auto there = co_await expose_zeros(server, 300000);
  std::uint32_t number = 0;
  for (const std::size_t bytes : {0u, 1u, 4096u, 300000u}) {
    ++number;
    auto source = co_await filled(pool(), bytes, number);
    co_await client.write(std::move(source), there.remote().slice(0, bytes), {.immediate = number});
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.size(), 0u);
    EXPECT_EQ(message.immediate, number);
    EXPECT_FALSE(message.invalidated_key);
    EXPECT_TRUE(holds(there.memory().bytes().first(bytes), number));
  }
}

// Where the standard of a fabric has it. Such a peer tells of no features, and has no credits.
TEST_P_BETWEEN(one_sided, writes_bring_immediate_data_to_peers_that_are_not_weft,
               options({.receive_depth = 4, .profile = net::profile::interop}),
               options({.receive_depth = 4, .profile = net::profile::interop})) {
  EXPECT_EQ(client.capabilities().write_immediate, server.capabilities().write_immediate);
  if (!client.capabilities().write_immediate) co_return;
  const auto there = co_await expose_zeros(server, 1000);
  for (std::uint32_t number = 1; number <= 20; ++number) {  // more than there are receives
    auto source = co_await filled(pool(), 50, number);
    co_await client.write(std::move(source), there.remote().slice(50 * (number - 1), 50), {.immediate = number});
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.size(), 0u);
    EXPECT_EQ(message.immediate, number);
    EXPECT_TRUE(holds(there.memory().bytes().subspan(50 * (number - 1), 50), number));
  }
}

TEST_P_BETWEEN(one_sided, writes_of_every_form_take_the_same_options) {
  if (!client.capabilities().write_immediate) co_return;
  const auto there = co_await expose_zeros(server, 30);
  auto memory = co_await filled(pool(), 30, 2);
  const std::array<mr::slice, 2> parts = {memory.slice(0, 10), memory.slice(10, 20)};
  co_await client.write(memory, there.remote(), {.immediate = 1});
  co_await client.write(memory.slice(), there.remote(), {.immediate = 2});
  co_await client.write(std::span<const mr::slice>(parts), there.remote(), {.immediate = 3});
  co_await client.write(std::move(memory), there.remote(), {.immediate = 4});
  for (std::uint32_t i = 1; i <= 4; ++i) {
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.immediate, i);
  }
}

TEST_P_BETWEEN(one_sided, writes_with_immediate_data_wait_for_credits_and_come_in_order_with_messages, options(),
               options({.receive_depth = 2})) {
  if (!client.capabilities().write_immediate) co_return;
  const auto there = co_await expose_zeros(server, 8);
  const auto write_all = [&]() -> task<> {
    auto note = co_await filled(pool(), 8, 1);
    for (std::uint32_t i = 0; i < 60; ++i) {
      if (i % 3 == 0) co_await client.send(note, {.immediate = i});
      if (i % 3 != 0) co_await client.write(note, there.remote(), {.immediate = i});
    }
  };
  attempt writing(tasks, write_all());
  co_await settle();
  EXPECT_FALSE(writing.ended());
  for (std::uint32_t i = 0; i < 60; ++i) {
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.immediate, i);
    EXPECT_EQ(message.size(), i % 3 == 0 ? 8u : 0u);
  }
  EXPECT_TRUE(co_await succeeds(writing));
}

TEST_P_WINDOWS(one_sided, scatter_lists_of_too_many_parts_of_none_or_of_another_size_are_refused) {
  const auto there = co_await expose_zeros(server, 9);
  const auto whole = co_await filled(pool(), 9, 4);
  const std::vector<mr::slice> nine(9, whole.slice(0, 1));
  const std::vector<mr::slice> foreign = {whole.slice(0, 8), mr::slice()};
  const auto expect_refused = [&](std::span<const mr::slice> parts) -> task<> {
    EXPECT_TRUE(refused_with(co_await failure_of(client.write(parts, there.remote())), errc::invalid_argument));
    EXPECT_TRUE(refused_with(co_await failure_of(client.read(parts, there.remote())), errc::invalid_argument));
  };
  co_await expect_refused(nine);
  co_await expect_refused(std::span(nine).first(8));
  co_await expect_refused(std::span(nine).first(0));
  co_await expect_refused(foreign);
  EXPECT_TRUE(is_zero(there.memory().bytes()) && holds(whole.bytes(), 4));
}

TEST_P_WINDOWS(one_sided, local_memory_of_another_device_of_the_wrong_purpose_or_moved_from_is_refused) {
  auto other = open_device_of(GetParam());
  const auto target = co_await expose_zeros(server, 8);
  auto foreign = co_await other.pool().allocate(8);
  const auto wrong_device = co_await code_of(client.write(foreign, target.remote()));
  EXPECT_EQ(wrong_device, errc::wrong_device);

  const auto region = co_await register_zeros(8, {.usage = mr::usage::send});
  EXPECT_EQ(co_await code_of(client.write(region.slice(), target.remote())), errc::access_denied);
  EXPECT_EQ(co_await code_of(client.read(region.slice(), target.remote())), errc::access_denied);

  mr::buffer empty;
  EXPECT_EQ(co_await code_of(client.read(empty, target.remote())), errc::invalid_argument);
}

TEST_P_WINDOWS(one_sided, a_peer_that_allows_no_reads_is_not_asked, options(), options({.incoming_reads = 0})) {
  const auto target = co_await expose_zeros(server, 8);
  auto local = co_await filled(pool(), 8, 1);
  EXPECT_EQ(client.capabilities().outgoing_reads, 0);
  EXPECT_EQ(co_await code_of(client.read(local, target.remote())), errc::not_supported);
  co_await client.write(local, target.remote());
}

TEST_P_WINDOWS(one_sided, reading_into_a_buffer_that_another_operation_uses_is_refused) {
  constexpr std::size_t bytes = 8'000'000;  // which take more turns than what happens meanwhile
  const auto there = co_await expose_zeros(server, bytes);
  auto local = co_await filled(pool(), bytes, 1);
  attempt writing(tasks, client.write(local, there.remote()));
  co_await yield();
  EXPECT_TRUE(local.in_use());
  const auto read = co_await failure_of(client.read(local, there.remote()));
  EXPECT_TRUE(read && read->code() == errc::buffer_in_use && !read->posted());
  co_await writing.end();

  attempt reading(tasks, client.read(local, there.remote()));
  co_await yield();
  EXPECT_EQ(co_await code_of(client.write(local, there.remote())), errc::buffer_in_use);
  EXPECT_EQ(co_await code_of(client.expose(std::move(local), open_wide)), errc::buffer_in_use);
  co_await reading.end();
  EXPECT_TRUE(writing.succeeded() && reading.succeeded());
}

TEST_P_WINDOWS(one_sided, a_buffer_that_a_read_still_fills_cannot_be_given_to_a_send) {
  const auto there = co_await expose_zeros(server, 4000);
  auto local = co_await filled(pool(), 4000, 1);
  attempt reading(tasks, client.read(local, there.remote()));
  co_await yield();
  EXPECT_EQ(co_await code_of(client.send(std::move(local))), errc::buffer_in_use);
  EXPECT_TRUE(co_await succeeds(reading));
}

}  // namespace
}  // namespace weft::test

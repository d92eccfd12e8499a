// SPDX-License-Identifier: Apache-2.0
// Buffers that a peer may use: for as long as their owner wants, and for that peer only.

#include <fmt/core.h>

#include <limits>

#include "kit/tell.hpp"
#include "peers.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

class exposures : public peers {};
WEFT_ON_EVERY_TRANSPORT(exposures);

TEST_P_WINDOWS(exposures, travel_to_the_peer_in_a_message) {
  const auto open = co_await expose_zeros(server, 1000);
  co_await tell(server, pool(), open.remote());

  const auto message = co_await client.recv_or_throw();
  const auto there = mr::remote_region::unpack(message.bytes());
  EXPECT_EQ(there, open.remote());
  auto source = co_await filled(pool(), 1000, 1);
  co_await write_and_flush(client, source, there);
  EXPECT_TRUE(holds(open.memory().bytes(), 1));
}

TEST_P_WINDOWS(exposures, taken_back_yield_their_buffer_and_the_peer_touches_it_no_more) {
  auto open = co_await expose_zeros(server, 1000);
  const mr::remote_region there = open.remote();
  auto source = co_await filled(pool(), 1000, 1);
  co_await write_and_flush(client, source, there);
  const auto back = co_await open.revoke();
  EXPECT_TRUE(back.size() == 1000 && holds(back.bytes(), 1));

  fill(source.bytes(), 2);
  static_cast<void>(co_await failure_of(client.write(source, there)));
  co_await expect_late(client, server);
  EXPECT_TRUE(holds(back.bytes(), 1));
}

TEST_P_WINDOWS(exposures, that_were_destroyed_are_revoked) {
  std::optional<mr::remote_region> there;
  const std::size_t before = pool().statistics().send.in_use_bytes;
  {
    const auto open = co_await expose_zeros(server, 1000);
    there = open.remote();
  }
  co_await until_lent_buffers_return(before);
  auto sink = co_await zeroed(pool(), 1000);
  const auto read = co_await failure_of(client.read(sink, *there));
  EXPECT_TRUE(read && read->code() == errc::remote_access && read->posted()) << (read ? read->what() : "nothing");
  EXPECT_TRUE(is_zero(sink.bytes()));
  co_await expect_late(client, server);
}

TEST_P_WINDOWS(exposures, that_a_peer_uses_too_late_are_named_and_nothing_else_is_blamed) {
  const auto open = co_await expose_zeros(server, 10);
  auto revoked = co_await expose_zeros(server, 10);
  const mr::remote_region gone = revoked.remote();
  static_cast<void>(co_await revoked.revoke());
  auto source = co_await filled(pool(), 10, 1);
  auto sink = co_await zeroed(pool(), 10);
  std::array both{client.write(source, gone), client.read(sink, open.remote())};
  static_cast<void>(co_await failure_of(client.batch(both)));
  const auto innocent = both[1].failure();
  EXPECT_TRUE(failed_with(innocent, errc::connection_failed, "with another key"));
  if (!GetParam().tells_of_revoked_keys) co_return;
  const std::string name = fmt::format("{:#010x}", gone.key());
  EXPECT_TRUE(says(innocent, name));
  EXPECT_TRUE(says(co_await failure_of(client.recv()), name));
  const auto at_server = co_await failure_of(server.recv());
  EXPECT_TRUE(says(at_server, name + ": a key that this end has revoked"));
  EXPECT_FALSE(contains(at_server, "broke the protocol")) << words_of(at_server);
}

TEST_P_WINDOWS(exposures, a_refused_read_is_blamed_and_those_beside_it_are_not) {
  const auto open = co_await expose_zeros(server, 10);
  std::optional<mr::remote_region> revoked;
  {
    auto gone = co_await expose_zeros(server, 10);
    revoked = gone.remote();
    static_cast<void>(co_await gone.revoke());  // on a device a plain drop takes a moment
  }
  auto a = co_await zeroed(pool(), 10);
  auto b = co_await zeroed(pool(), 10);
  auto c = co_await zeroed(pool(), 10);
  co_await client.read(a, open.remote());
  attempt second(tasks, client.read(b, *revoked));
  attempt third(tasks, client.read(c, open.remote()));
  co_await second.end();
  co_await third.end();
  EXPECT_EQ(second.code(), errc::remote_access);
  EXPECT_NE(second.words().find("read 10 bytes"), std::string::npos) << second.words();
  EXPECT_TRUE(GetParam().forgives_late_accesses ? third.succeeded() : third.code() && third.posted());
}

TEST_P_TASK_WHERE(exposures, no_key_ever_opens_another_connections_memory, binds_keys(), no_bound_keys) {
  auto one = co_await connect_pair();
  auto other = co_await connect_pair();
  const auto open = co_await expose_zeros(one.server, 1000);
  auto source = co_await filled(pool(), 1000, 1);
  static_cast<void>(co_await failure_of(other.client.write(source, open.remote())));
  EXPECT_EQ(co_await code_of(other.server.recv()), errc::protocol_error);
  EXPECT_EQ(co_await code_of(other.client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(open.memory().bytes()));

  co_await one.client.write(source, open.remote());  // the connection that it belongs to is unharmed
  co_await one.client.flush(open.remote());
  EXPECT_TRUE(holds(open.memory().bytes(), 1));
}

TEST_P_TASK_WHERE(exposures, of_another_connection_cannot_be_read_either, binds_keys(), no_bound_keys) {
  auto one = co_await connect_pair();
  auto other = co_await connect_pair();
  const auto open = co_await one.server.expose(co_await filled(pool(), 100, 1), open_wide);
  auto sink = co_await zeroed(pool(), 100);
  EXPECT_EQ(co_await code_of(other.client.read(sink, open.remote())), errc::remote_access);
  EXPECT_TRUE(is_zero(sink.bytes()));
}

TEST_P_WINDOWS(exposures, beyond_their_end_are_out_of_reach_even_for_a_peer_that_lies_about_their_size) {
  const auto open = co_await expose_zeros(server, 1000);
  const mr::remote_region longer(open.remote().key(), open.remote().address(), 1001, open_wide);
  auto source = co_await filled(pool(), 2, 1);
  static_cast<void>(co_await failure_of(client.write(source, longer.slice(999, 2))));
  EXPECT_EQ(co_await code_of(client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(open.memory().bytes()));
}

TEST_P_WINDOWS(exposures, are_not_writable_for_a_peer_that_lies_about_its_rights) {
  const auto open = co_await expose_zeros(server, 1000, mr::usage::read_src);
  const mr::remote_region forged(open.remote().key(), open.remote().address(), 1000, open_wide);
  auto source = co_await filled(pool(), 1000, 1);
  static_cast<void>(co_await failure_of(client.write(source, forged)));
  EXPECT_EQ(co_await code_of(client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(open.memory().bytes()));
}

TEST_P_WINDOWS(exposures, are_not_readable_for_a_peer_that_lies_about_its_rights) {
  const auto open = co_await expose_zeros(server, 1000, mr::usage::write_dst);
  const mr::remote_region forged(open.remote().key(), open.remote().address(), 1000, open_wide);
  auto sink = co_await filled(pool(), 1000, 1);
  EXPECT_EQ(co_await code_of(client.read(sink, forged)), errc::remote_access);
  EXPECT_TRUE(holds(sink.bytes(), 1));
}

TEST_P(exposures, may_outlive_their_connection) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  std::optional<net::exposure> kept;
  std::optional<net::exposure> destroyed_late;
  between_peers([&](net::connection&, net::connection& server) -> task<> {
    kept.emplace(co_await expose_zeros(server, 1000));
    destroyed_late.emplace(co_await expose_zeros(server, 1000));
  });
  const auto take_back = [&]() -> task<> {
    const auto back = co_await kept->revoke();
    EXPECT_EQ(back.size(), 1000u);
    destroyed_late.reset();
  };
  run(take_back);
}

TEST_P_WINDOWS_TASK(exposures, end_with_their_connection) {
  std::optional<net::exposure> open;
  {
    auto ended = co_await connect_pair();
    open.emplace(co_await expose_zeros(ended.server, 1000));
    co_await when_all(ended.client.close(), ended.server.close());
  }
  auto next = co_await connect_pair();
  auto source = co_await filled(pool(), 1000, 1);
  static_cast<void>(co_await failure_of(next.client.write(source, open->remote())));
  EXPECT_EQ(co_await code_of(next.client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(open->memory().bytes()));
}

TEST_P_BETWEEN(exposures, for_uses_that_no_peer_has_are_refused) {
  for (const mr::usage uses : {mr::usage::none, mr::usage::send, mr::usage::bind_window | mr::usage::write_dst}) {
    EXPECT_EQ(co_await code_of(server.expose(co_await pool().allocate(8), uses)), errc::not_supported);
  }
  EXPECT_EQ(co_await code_of(server.expose(co_await pool().allocate(0), open_wide)), errc::zero_length);
}

TEST_P_BETWEEN(exposures, can_be_given_back_by_the_peer_with_a_message) {
  if (!client.capabilities().invalidate) co_return;
  auto open = co_await expose_zeros(server, 1000);
  const mr::remote_region there = open.remote();
  auto source = co_await filled(pool(), 1000, 1);
  co_await client.write(source, there);
  co_await client.send(source.slice(0, 5), {.immediate = 9, .invalidate = there.key()});
  const auto message = co_await server.recv_or_throw();
  EXPECT_EQ(message.invalidated_key, there.key());
  EXPECT_EQ(message.immediate, 9u);
  EXPECT_TRUE(message.size() == 5 && holds(message.bytes(), 1));
  const auto back = co_await open.revoke();
  EXPECT_TRUE(back.size() == 1000 && holds(back.bytes(), 1));

  // The connection goes on, and the peer has nothing left to reach that memory with.
  fill(source.bytes(), 2);
  static_cast<void>(co_await failure_of(client.write(source, there)));
  EXPECT_EQ(co_await code_of(server.recv()), errc::protocol_error);
  EXPECT_TRUE(holds(back.bytes(), 1));
}

TEST_P_BETWEEN(exposures, are_not_given_back_by_a_key_whose_last_32_bits_are_theirs) {
  if (!client.capabilities().invalidate) co_return;
  const auto open = co_await expose_zeros(server, 10);
  const std::uint64_t key = open.remote().key();
  if (key > std::numeric_limits<std::uint32_t>::max()) co_return;  // of rails, whose messages carry 64
  auto note = co_await filled(pool(), 10, 1);
  const std::uint64_t other = key + (std::uint64_t{1} << 32);
  EXPECT_EQ(co_await code_of(client.send(note, {.invalidate = other})), errc::invalid_argument);
  co_await write_and_flush(client, note, open.remote());
  EXPECT_TRUE(holds(open.memory().bytes(), 1));
}

TEST_P_TASK_WHERE(exposures, of_another_connection_and_whole_regions_cannot_be_given_back,
                  opens_regions() && has_windows(),
                  "the regions of this device are open to no peer, or it has no memory windows") {
  auto other = co_await connect_pair();
  const auto open = co_await expose_zeros(other.server, 10);
  const auto region = co_await register_zeros(10, {.usage = open_wide});
  auto note = co_await filled(pool(), 10, 1);
  std::vector<std::uint32_t> keys = {test::stag_of(region.remote()), test::stag_of(open.remote()) ^ 0xFFF};
  // Soft-RoCE does not look at whose window it is, as of Linux 6.1.
  if (!is_soft_roce()) keys.push_back(test::stag_of(open.remote()));
  for (const std::uint32_t key : keys) {
    auto pair = co_await connect_pair();
    if (!pair.client.capabilities().invalidate) co_return;
    static_cast<void>(co_await failure_of(pair.client.send(note, {.invalidate = key})));
    EXPECT_TRUE(failed_with(co_await failure_of(pair.server.recv()), errc::protocol_error));
    const auto at_client = co_await code_of(pair.client.recv());
    // One of several rails may explain what another does not.
    const bool may_be_silent = !pair.client.capabilities().explains_end;
    EXPECT_TRUE(at_client == errc::remote_access || (may_be_silent && at_client == errc::peer_vanished)) << at_client;
  }
  co_await other.client.write(note, open.remote());
  co_await other.client.write(note, region.remote());
  co_await other.client.flush(open.remote());
  EXPECT_TRUE(holds(open.memory().bytes(), 1) && holds(region.bytes(), 1));
}

TEST_P_WINDOWS(exposures, of_the_same_kind_have_keys_of_their_own) {
  EXPECT_NE((co_await expose_zeros(server, 8)).remote().key(), (co_await expose_zeros(server, 8)).remote().key());
}

// ---- retired ones ----

TEST_P_WINDOWS(exposures, that_are_retired_take_a_late_write_and_the_connection_goes_on) {
  auto open = co_await expose_zeros(server, 1000);
  const mr::remote_region there = open.remote();
  const std::span<const std::byte> memory = open.memory().bytes();
  open.retire();
  EXPECT_FALSE(open.memory());
  EXPECT_EQ(open.remote(), there);
  EXPECT_EQ(server.statistics().retired, 1u);
  EXPECT_EQ(server.statistics().retired_bytes, 1000u);

  auto source = co_await filled(pool(), 1000, 1);
  co_await write_and_flush(client, source, there);
  EXPECT_TRUE(holds(memory, 1));
  co_await client.send(source.slice(0, 10));
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 10u);
  co_await server.send(source.slice(0, 20));
  EXPECT_EQ((co_await client.recv_or_throw()).size(), 20u);
}

TEST_P_BETWEEN(exposures, that_are_retired_come_home_when_the_peer_revokes_the_key) {
  if (!client.capabilities().invalidate) co_return;
  auto note = co_await filled(pool(), 10, 1);
  const std::size_t before = pool().statistics().send.in_use_bytes;
  auto open = co_await expose_zeros(server, 1000);
  const mr::remote_region there = open.remote();
  open.retire();
  EXPECT_NE(pool().statistics().send.in_use_bytes, before);
  co_await client.send(note, {.invalidate = there.key()});
  EXPECT_EQ((co_await server.recv_or_throw()).invalidated_key, there.key());
  co_await until_lent_buffers_return(before);
  EXPECT_EQ(server.statistics().retired + server.statistics().retired_bytes, 0u);
}

TEST_P_BETWEEN(exposures, that_the_peer_has_revoked_before_they_are_retired_come_home_at_once) {
  if (!client.capabilities().invalidate) co_return;
  auto note = co_await filled(pool(), 10, 1);
  const std::size_t before = pool().statistics().send.in_use_bytes;
  auto open = co_await expose_zeros(server, 1000);
  co_await client.send(note, {.invalidate = open.remote().key()});
  static_cast<void>(co_await server.recv_or_throw());
  open.retire();
  co_await until_lent_buffers_return(before);
  EXPECT_EQ(server.statistics().retired, 0u);
}

TEST_P_WINDOWS(exposures, that_are_retired_come_home_and_are_closed_when_the_program_says_that_the_peer_is_done) {
  auto source = co_await filled(pool(), 1000, 1);
  const std::size_t before = pool().statistics().send.in_use_bytes;
  auto first = co_await expose_zeros(server, 1000);
  auto second = co_await expose_zeros(server, 1000);
  auto third = co_await expose_zeros(server, 1000);
  for (net::exposure* each : {&first, &second, &third}) each->retire();
  EXPECT_EQ(server.statistics().retired, 3u);
  server.confirm_retired(first.remote().key() ^ second.remote().key() ^ third.remote().key());  // of nothing
  EXPECT_EQ(server.statistics().retired, 3u);
  server.confirm_retired(second.remote().key());
  server.confirm_retired(second.remote().key());  // and again
  EXPECT_EQ(server.statistics().retired_bytes, 2000u);
  co_await write_and_flush(client, source, third.remote());
  server.confirm_retired(third.remote().key());
  server.confirm_retired(first.remote().key());
  EXPECT_EQ(server.statistics().retired, 0u);
  co_await until_lent_buffers_return(before);

  static_cast<void>(co_await failure_of(client.write(source, second.remote())));
  co_await expect_late(client, server);
}

TEST_P_WINDOWS(exposures, that_the_peer_is_done_with_before_they_are_retired_stay_until_then) {
  auto source = co_await filled(pool(), 1000, 1);
  const std::size_t before = pool().statistics().send.in_use_bytes;
  auto open = co_await expose_zeros(server, 1000);
  server.confirm_retired(open.remote().key());
  co_await write_and_flush(client, source, open.remote());
  EXPECT_TRUE(holds(open.memory().bytes(), 1));
  open.retire();
  co_await until_lent_buffers_return(before);
}

TEST_P_WINDOWS_TASK(exposures, that_are_retired_come_home_with_the_end_of_their_connection) {
  for (const bool in_order : {true, false}) {
    auto ends = co_await connect_pair();
    auto open = co_await expose_zeros(ends.server, 1000);
    auto late = co_await expose_zeros(ends.server, 1000);
    open.retire();
    if (!in_order) ends.client.abort();
    co_await when_all(ends.client.close(), ends.server.close());
    EXPECT_EQ(ends.server.statistics().retired + ends.server.statistics().retired_bytes, 0u);
    EXPECT_NE(pool().statistics().send.in_use_bytes, 0u);
    late.retire();
    EXPECT_EQ(ends.server.statistics().retired, 0u);
    EXPECT_EQ(pool().statistics().send.in_use_bytes, 0u);
  }
}

TEST_P_WINDOWS(exposures, that_are_empty_have_nothing_to_retire) {
  net::exposure().retire();
  net::exposure().retire();
  auto open = co_await expose_zeros(server, 10);
  auto moved = std::move(open);
  open.retire();
  EXPECT_EQ(server.statistics().retired, 0u);
  moved.retire();
  moved.retire();
  EXPECT_EQ(server.statistics().retired, 1u);
  EXPECT_FALSE(co_await moved.revoke());
}

// ---- lent until a time ----

class exposures_until_a_time : public exposures {
 protected:
  exposures_until_a_time() { open_executor({.clock = &time_}); }
  // Longer than it takes to expose something on a machine that stands still meanwhile, and less than dead_peer_after.
  static constexpr auto a_while = 9s;
  [[nodiscard]] time_point soon() noexcept { return time_.now() + a_while; }
  void pass_a_while() noexcept { time_.advance(a_while); }

  manual_clock time_{manual_clock::between_moves::goes};
};
WEFT_ON_EVERY_TRANSPORT(exposures_until_a_time);

TEST_P_WINDOWS(exposures_until_a_time, are_taken_back_by_themselves) {
  auto open = co_await expose_zeros(server, 1000, open_wide, {.until = soon()});
  const mr::remote_region there = open.remote();
  pass_a_while();
  EXPECT_EQ(co_await open.ended(), net::exposure_end::deadline);
  EXPECT_EQ(open.ended_by(), net::exposure_end::deadline);
  EXPECT_EQ(open.memory().size(), 1000u);
  EXPECT_EQ(co_await open.ended(), net::exposure_end::deadline);
  auto back = co_await open.revoke();
  EXPECT_EQ(open.ended_by(), net::exposure_end::deadline);
  EXPECT_EQ(back.size(), 1000u);
  fill(back.bytes(), 1);

  auto source = co_await filled(pool(), 1000, 2);
  static_cast<void>(co_await failure_of(client.write(source, there)));
  EXPECT_TRUE(co_await code_of(client.flush(there)));
  EXPECT_TRUE(holds(back.bytes(), 1));
}

TEST_P_WINDOWS(exposures_until_a_time, are_open_before) {
  auto open = co_await expose_zeros(server, 1000, open_wide, {.until = home().now() + forever});
  EXPECT_EQ(open.ended_by(), net::exposure_end::open);
  auto source = co_await filled(pool(), 1000, 1);
  co_await write_and_flush(client, source, open.remote());
  EXPECT_TRUE(holds(open.memory().bytes(), 1));
  const auto back = co_await open.revoke();
  EXPECT_EQ(open.ended_by(), net::exposure_end::owner);
  EXPECT_TRUE(holds(back.bytes(), 1));
}

TEST_P_WINDOWS(exposures_until_a_time, let_their_region_go_then) {
  auto region = co_await register_zeros(64, {.usage = mr::usage::bind_window});
  auto part = co_await server.expose(region.slice(8, 8), open_wide, {.until = soon()});
  pass_a_while();
  EXPECT_EQ(co_await part.ended(), net::exposure_end::deadline);
  co_await region.release();
  EXPECT_FALSE(co_await part.revoke());
}

TEST_P_WINDOWS(exposures_until_a_time, that_has_passed_are_refused) {
  for (const time_point when : {time_point::min(), time_point(), home().now()}) {
    const auto failure = co_await failure_of(expose_zeros(server, 10, open_wide, {.until = when}));
    EXPECT_TRUE(failed_with(failure, errc::timed_out));
  }
  co_await expect_delivery(client, server);
}

TEST_P_WINDOWS_TASK(exposures, say_that_they_have_ended_with_their_connection) {
  for (const bool in_order : {true, false}) {
    auto ends = co_await connect_pair();
    auto open = co_await expose_zeros(ends.server, 10, open_wide, {.until = home().now() + forever});
    const auto waiting = [&]() -> task<> { EXPECT_EQ(co_await open.ended(), net::exposure_end::connection); };
    const auto closing = [&]() -> task<> {
      if (!in_order) ends.client.abort();
      co_await when_all(ends.client.close(), ends.server.close());
    };
    co_await when_all(waiting(), closing());
    const auto back = co_await open.revoke();
    EXPECT_EQ(back.size(), 10u);
    EXPECT_EQ(open.ended_by(), net::exposure_end::connection);
  }
}

TEST_P_BETWEEN(exposures, say_that_the_peer_has_given_them_back) {
  if (!client.capabilities().invalidate) co_return;
  auto open = co_await expose_zeros(server, 10, open_wide, {.until = home().now() + forever});
  auto note = co_await filled(pool(), 10, 1);
  co_await client.send(note, {.invalidate = open.remote().key()});
  EXPECT_EQ(co_await open.ended(), net::exposure_end::peer);
  static_cast<void>(co_await server.recv_or_throw());
  const auto back = co_await open.revoke();
  EXPECT_EQ(back.size(), 10u);
  EXPECT_EQ(open.ended_by(), net::exposure_end::peer);
}

TEST_P_WINDOWS(exposures, that_somebody_waits_for_end_that_wait_when_they_are_let_go) {
  for (const bool dropped : {false, true}) {
    auto open = co_await expose_zeros(server, 10);
    attempt one(tasks, open.ended());
    attempt stopped(tasks, open.ended());
    attempt other(tasks, open.ended());
    co_await settle();
    EXPECT_EQ(co_await code_once_stopped(stopped), errc::canceled);
    EXPECT_EQ(open.ended_by(), net::exposure_end::open);
    EXPECT_FALSE(one.ended() || other.ended());
    if (dropped) {
      open = net::exposure();
    } else {
      static_cast<void>(co_await open.revoke());
    }
    EXPECT_TRUE(co_await succeeds(one));
    EXPECT_TRUE(co_await succeeds(other));
  }
}

// Each is let go in one of several ways about when its time comes.
TEST_P_WINDOWS(exposures_until_a_time, that_are_let_go_about_then_all_come_home) {
  const std::size_t before = pool().statistics().send.in_use_bytes;
  constexpr std::size_t count = 60;
  std::vector<net::exposure> open;
  for (std::size_t i = 0; i < count; ++i) {
    const time_point until = soon() + std::chrono::milliseconds(i * 7 % 5);
    open.push_back(co_await expose_zeros(server, 100, open_wide, {.until = until}));
  }
  pass_a_while();
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 4 == 0) open[i].retire();
    if (i % 4 == 1) open[i] = net::exposure();
    if (i % 4 == 2) {
      const auto back = co_await open[i].revoke();
      EXPECT_EQ(back.size(), 100u);
      EXPECT_NE(open[i].ended_by(), net::exposure_end::open);
    }
    if (i % 4 == 3) {
      const auto how = co_await open[i].ended();
      EXPECT_EQ(how, net::exposure_end::deadline);
    }
  }
  while (server.statistics().retired != 0) co_await sleep_for(1ms);
  open.clear();
  co_await until_lent_buffers_return(before);
  co_await expect_delivery(client, server);
}

}  // namespace
}  // namespace weft::test

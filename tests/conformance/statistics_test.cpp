// SPDX-License-Identifier: Apache-2.0
// What connections and devices count.
#include <weft/net/statistics.hpp>

#include "peers.hpp"

namespace weft::test {
namespace {

class statistics : public peers {};
WEFT_ON_EVERY_TRANSPORT(statistics);

TEST_P_WINDOWS(statistics, count_the_operations_of_a_connection_by_kind) {
  const auto open = co_await expose_zeros(server, 64);
  auto source = co_await filled(pool(), 64, 1);
  for (int i = 0; i < 3; ++i) {
    co_await client.send(source);
    static_cast<void>(co_await server.recv_or_throw());
  }
  co_await client.write(source, open.remote());
  co_await client.read(source, open.remote());
  co_await client.flush(open.remote().slice(0, 8));

  const net::connection_statistics ours = client.statistics();
  EXPECT_EQ(ours.sends.posted, 3u);
  EXPECT_EQ(ours.sends.bytes, 3u * 64);
  EXPECT_EQ(ours.writes.posted, 1u);
  EXPECT_EQ(ours.writes.bytes, 64u);
  EXPECT_EQ(ours.reads.posted, 1u);
  EXPECT_EQ(ours.reads.bytes, 64u);
  EXPECT_EQ(ours.flushes.posted, 1u);
  EXPECT_EQ(ours.sends.failed + ours.writes.failed + ours.reads.failed + ours.flushes.failed, 0u);
  EXPECT_EQ(ours.messages_received, 0u);
  const net::connection_statistics theirs = server.statistics();
  EXPECT_EQ(theirs.messages_received, 3u);
  EXPECT_EQ(theirs.bytes_received, 3u * 64);
  EXPECT_EQ(theirs.sends.posted, 0u);
}

TEST_P_BETWEEN(statistics, count_messages_that_had_to_wait_for_the_peer, options({.receive_depth = 2}),
               options({.receive_depth = 2})) {
  auto payload = co_await filled(pool(), 16, 1);
  const auto send = [](net::connection& to, mr::buffer& what) -> task<> { co_await to.send(what); };
  for (int i = 0; i < 5; ++i) tasks.spawn(send(client, payload));
  co_await settle();
  EXPECT_EQ(client.statistics().sends.posted, 2u);
  EXPECT_EQ(client.statistics().waits_for_credits, 3u);
  EXPECT_EQ(client.statistics().waiting, 3u);
  EXPECT_EQ(device().statistics().of_open.waiting, 3u) << "anybody may ask the device";
  for (int i = 0; i < 5; ++i) static_cast<void>(co_await server.recv_or_throw());
  EXPECT_EQ(client.statistics().sends.posted, 5u);
  EXPECT_EQ(client.statistics().waits_for_credits, 3u);
  EXPECT_EQ(client.statistics().waiting, 0u);
}

TEST_P_WINDOWS(statistics, count_operations_that_failed) {
  auto open = co_await expose_zeros(server, 64, mr::usage::read_src);
  const mr::remote_region remote = open.remote();
  static_cast<void>(co_await open.revoke());
  auto target = co_await zeroed(pool(), 64);
  EXPECT_TRUE(co_await code_of(client.read(target, remote)));
  EXPECT_EQ(client.statistics().reads.posted, 1u);
  EXPECT_EQ(client.statistics().reads.failed, 1u);
  EXPECT_EQ(client.statistics().reads.bytes, 64u);
}

TEST_P_WINDOWS(statistics, tell_what_was_retired_as_gauges) {
  auto open = co_await expose_zeros(server, 64, mr::usage::read_src);
  open.retire();
  metrics all;
  add_to(all, server.statistics(), "here");
  EXPECT_TRUE(contains(all.text(), "# TYPE weft_retired_bytes gauge\n"));
  EXPECT_TRUE(contains(all.text(), "weft_retired_exposures{connection=\"here\"} 1\n"));
  EXPECT_TRUE(contains(all.text(), "weft_retired_bytes{connection=\"here\"} 64\n"));
}

TEST_P(statistics, of_a_device_are_live_while_its_connections_are_open) {
  const net::device_statistics before = device().statistics();
  net::connection_statistics in_between;
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    EXPECT_EQ(device().statistics().connections_open(), 2u);
    auto payload = co_await filled(pool(), 16, 1);
    co_await client.send(payload);
    static_cast<void>(co_await server.recv_or_throw());
    const net::device_statistics now = device().statistics();
    EXPECT_EQ(now.connections_ended, before.connections_ended);
    EXPECT_EQ(now.of_open.sends.posted, 1u);
    EXPECT_EQ(now.of_open.sends.bytes, 16u);
    EXPECT_EQ(now.of_open.messages_received, 1u);
    in_between = now.of_all();
    EXPECT_EQ(in_between.sends.posted - before.of_all().sends.posted, 1u);
  });
  const net::device_statistics after = device().statistics();
  EXPECT_EQ(after.connections_open(), 0u);
  EXPECT_EQ(after.of_open.sends.posted, 0u);
  EXPECT_EQ(after.of_open.in_flight, 0u);
  EXPECT_EQ(after.of_all().sends.posted, in_between.sends.posted) << "what is moved is counted once";
}

TEST_P_WHERE(statistics, of_a_device_tell_what_is_in_flight_at_the_moment, GetParam().answers_in_turns,
             "a device may answer before the test has looked") {
  const auto open = co_await expose_zeros(server, 64, mr::usage::read_src);
  auto target = co_await zeroed(pool(), 64);
  attempt reading(tasks, client.read(target, open.remote()));
  co_await yield();  // it is posted, and its answer cannot be here yet
  EXPECT_EQ(device().statistics().of_open.in_flight, 1u);
  co_await reading.end();
  EXPECT_EQ(device().statistics().of_open.in_flight, 0u);
}

TEST_P(statistics, of_a_device_may_be_asked_for_on_any_thread_while_it_works) {
  net::connection_statistics last;
  std::jthread asking([&](const std::stop_token& over) {
    while (!over.stop_requested()) {
      const net::connection_statistics now = device().statistics().of_all();
      EXPECT_GE(now.sends.posted, last.sends.posted);
      last = now;
      std::this_thread::yield();
    }
  });
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    auto payload = co_await filled(pool(), 16, 1);
    for (int i = 0; i < 100; ++i) {
      co_await client.send(payload);
      static_cast<void>(co_await server.recv_or_throw());
    }
  });
  asking.request_stop();
  asking.join();
}

TEST_P(statistics, of_a_device_keep_what_its_connections_had_done) {
  const net::device_statistics before = device().statistics();
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    EXPECT_EQ(device().statistics().connections_opened - before.connections_opened, 2u);
    auto payload = co_await filled(pool(), 16, 1);
    co_await client.send(payload);
    static_cast<void>(co_await server.recv_or_throw());
  });
  const net::device_statistics after = device().statistics();
  EXPECT_EQ(after.connections_ended - before.connections_ended, 2u);
  EXPECT_EQ(after.of_ended.sends.posted - before.of_ended.sends.posted, 1u);
  EXPECT_EQ(after.of_ended.bytes_received - before.of_ended.bytes_received, 16u);
  metrics all;
  add_to(all, after, "here");
  EXPECT_TRUE(contains(all.text(), "weft_connections_opened_total{device=\"here\"} "));
  EXPECT_TRUE(contains(all.text(), "weft_operations_total{device=\"here\",kind=\"send\"} "));
  EXPECT_TRUE(
      contains(all.text(), "# TYPE weft_operations_in_flight gauge\nweft_operations_in_flight{device=\"here\"} 0\n"));
  EXPECT_TRUE(contains(all.text(), "weft_connections_open{device=\"here\"} 0\n"));
}

}  // namespace
}  // namespace weft::test

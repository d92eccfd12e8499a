// SPDX-License-Identifier: Apache-2.0
// What connections and devices count.
#include <weft/net/statistics.hpp>

#include <string>

#include "peers.hpp"

namespace weft::test {
namespace {

class statistics : public peers {};
WEFT_ON_EVERY_TRANSPORT(statistics);

TEST_P(statistics, count_the_operations_of_a_connection_by_kind) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    auto memory = co_await zeroed(pool(), 64);
    const auto open = co_await server.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src);
    auto source = co_await filled(pool(), 64, 1);
    for (int i = 0; i < 3; ++i) {
      co_await client.send(source);
      static_cast<void>(co_await server.recv_or_throw());
    }
    co_await client.write(source, open.remote());
    co_await client.read(source, open.remote());
    co_await client.flush(open.remote().slice(0, 8));

    const net::connection_statistics& ours = client.statistics();
    EXPECT_EQ(ours.sends.posted, 3u);
    EXPECT_EQ(ours.sends.bytes, 3u * 64);
    EXPECT_EQ(ours.writes.posted, 1u);
    EXPECT_EQ(ours.writes.bytes, 64u);
    EXPECT_EQ(ours.reads.posted, 1u);
    EXPECT_EQ(ours.reads.bytes, 64u);
    EXPECT_EQ(ours.flushes.posted, 1u);
    EXPECT_EQ(ours.sends.failed + ours.writes.failed + ours.reads.failed + ours.flushes.failed, 0u);
    EXPECT_EQ(ours.messages_received, 0u);
    const net::connection_statistics& theirs = server.statistics();
    EXPECT_EQ(theirs.messages_received, 3u);
    EXPECT_EQ(theirs.bytes_received, 3u * 64);
    EXPECT_EQ(theirs.sends.posted, 0u);
  });
}

TEST_P(statistics, count_messages_that_had_to_wait_for_the_peer) {
  net::connection_options shallow = options();
  shallow.receive_depth = 2;
  const auto script = [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
    auto payload = co_await filled(pool(), 16, 1);
    const auto send = [](net::connection& to, mr::buffer& what) -> task<> { co_await to.send(what); };
    for (int i = 0; i < 5; ++i) tasks.spawn(send(client, payload));
    co_await settle();
    EXPECT_EQ(client.statistics().sends.posted, 2u);
    EXPECT_EQ(client.statistics().waits_for_credits, 3u);
    for (int i = 0; i < 5; ++i) static_cast<void>(co_await server.recv_or_throw());
    EXPECT_EQ(client.statistics().sends.posted, 5u);
    EXPECT_EQ(client.statistics().waits_for_credits, 3u);
  };
  between_busy_peers(script, shallow, shallow);
}

TEST_P(statistics, count_operations_that_failed) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    auto memory = co_await zeroed(pool(), 64);
    auto open = co_await server.expose(std::move(memory), mr::usage::read_src);
    const mr::remote_region remote = open.remote();
    static_cast<void>(co_await open.take_back());
    auto target = co_await zeroed(pool(), 64);
    EXPECT_TRUE(co_await code_of(client.read(target, remote)));
    EXPECT_EQ(client.statistics().reads.posted, 1u);
    EXPECT_EQ(client.statistics().reads.failed, 1u);
    EXPECT_EQ(client.statistics().reads.bytes, 64u);
  });
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
  EXPECT_NE(all.text().find("weft_connections_opened_total{device=\"here\"} "), std::string::npos);
  EXPECT_NE(all.text().find("weft_operations_total{device=\"here\",kind=\"send\"} "), std::string::npos);
}

}  // namespace
}  // namespace weft::test

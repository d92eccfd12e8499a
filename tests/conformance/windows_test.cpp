// SPDX-License-Identifier: Apache-2.0
// Ranges of regions that a peer may use: for as long as their owner wants, and for that peer only.
#include <weft/mr/porting/porting.hpp>

#include "peers.hpp"

namespace weft::test {
namespace {

class windows : public peers {
 protected:
  task<mr::region> bindable(std::size_t bytes) { return register_zeros(bytes, {.usage = mr::usage::bind_window}); }
};
WEFT_ON_EVERY_TRANSPORT(windows);

TEST_P_WINDOWS(windows, open_their_range_of_a_region_and_no_more) {
  auto region = co_await bindable(1000);
  auto part = co_await server.expose(region.slice(100, 50), open_wide);
  EXPECT_EQ(part.remote().size(), 50u);
  auto source = co_await filled(pool(), 50, 1);
  co_await write_and_flush(client, source, part.remote());
  EXPECT_TRUE(is_zero(region.bytes().first(100)) && is_zero(region.bytes().subspan(150)));
  EXPECT_TRUE(holds(region.bytes().subspan(100, 50), 1));

  const mr::remote_region longer(part.remote().key(), part.remote().address(), 51, open_wide);
  static_cast<void>(co_await failure_of(client.write(source.slice(0, 2), longer.slice(49, 2))));
  EXPECT_EQ(co_await code_of(client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(region.bytes().subspan(150)));
}

TEST_P_WINDOWS(windows, of_one_region_may_overlap_and_differ_in_what_they_allow) {
  auto region = co_await bindable(64);
  const auto written = co_await server.expose(region.slice(), mr::usage::write_dst);
  const auto read = co_await server.expose(region.slice(8, 8), mr::usage::read_src);
  auto memory = co_await filled(pool(), 64, 1);
  co_await client.write(memory, written.remote());
  auto copy = co_await zeroed(pool(), 8);
  co_await client.read(copy, read.remote());
  EXPECT_TRUE(std::equal(copy.bytes().begin(), copy.bytes().end(), memory.bytes().begin() + 8));

  const mr::remote_region forged(read.remote().key(), read.remote().address(), 8, open_wide);
  fill(copy.bytes(), 7);
  static_cast<void>(co_await failure_of(client.write(copy, forged)));
  EXPECT_EQ(co_await code_of(client.recv()), errc::remote_access);
  EXPECT_TRUE(holds(region.bytes(), 1));
}

TEST_P_WINDOWS(windows, unbound_are_closed_and_let_their_region_go) {
  auto region = co_await bindable(64);
  auto part = co_await server.expose(region.slice(), open_wide);
  const mr::remote_region there = part.remote();
  const auto busy = co_await code_of(region.release());
  EXPECT_EQ(busy, errc::busy);
  co_await part.revoke();
  co_await region.release();
  auto source = co_await filled(pool(), 64, 1);
  static_cast<void>(co_await failure_of(client.write(source, there)));
  co_await expect_late(client, server);
}

TEST_P_WINDOWS(windows, destroyed_or_replaced_are_unbound) {
  auto one = co_await bindable(64);
  auto other = co_await bindable(64);
  {
    auto part = co_await server.expose(one.slice(), open_wide);
    part = co_await server.expose(other.slice(), open_wide);
    co_await one.release();
    const auto busy = co_await code_of(other.release());
    EXPECT_EQ(busy, errc::busy);
  }
  co_await other.release();
}

TEST_P_WINDOWS(windows, keep_an_owning_region_that_is_destroyed) {
  std::optional<net::exposure> part;
  {
    auto region = co_await bindable(64);
    fill(region.bytes(), 1);
    part.emplace(co_await server.expose(region.slice(), open_wide));
  }
  auto copy = co_await zeroed(pool(), 64);
  co_await client.read(copy, part->remote());
  EXPECT_TRUE(holds(copy.bytes(), 1));
}

TEST_P_WINDOWS(windows, can_be_given_back_by_the_peer_with_a_message) {
  if (!client.capabilities().invalidate) co_return;
  auto region = co_await bindable(64);
  auto part = co_await server.expose(region.slice(), open_wide);
  auto note = co_await filled(pool(), 64, 1);
  co_await client.send(note, {.invalidate = part.remote().key()});
  EXPECT_EQ((co_await server.recv_or_throw()).invalidated_key, part.remote().key());
  static_cast<void>(co_await failure_of(client.write(note, part.remote())));
  EXPECT_EQ(co_await code_of(client.recv()), errc::remote_access);
  EXPECT_TRUE(is_zero(region.bytes()));
  co_await part.revoke();
  co_await region.release();
}

TEST_P_TASK_WHERE(windows, are_for_one_connection_only_and_end_with_it, binds_keys(), no_bound_keys) {
  auto region = co_await bindable(64);
  std::optional<net::exposure> part;
  auto source = co_await filled(pool(), 64, 1);
  for (const bool ended : {false, true}) {
    auto other = co_await connect_pair();
    auto own = co_await connect_pair();
    part.emplace(co_await own.server.expose(region.slice(), open_wide));
    if (ended) co_await when_all(own.client.close(), own.server.close());
    static_cast<void>(co_await failure_of(other.client.write(source, part->remote())));
    EXPECT_EQ(co_await code_of(other.client.recv()), errc::remote_access);
    EXPECT_TRUE(is_zero(region.bytes()));
  }
  co_await part->revoke();
  co_await region.release();
}

TEST_P_WINDOWS(windows, that_cannot_be_are_refused) {
  auto elsewhere = open_device_of(GetParam());
  auto region = co_await bindable(64);
  const auto expect = [&](const mr::slice& range, mr::usage uses, errc expected) -> task<> {
    EXPECT_EQ(co_await code_of(server.expose(range, uses)), expected);
  };
  co_await expect(region.slice(0, 0), open_wide, errc::zero_length);
  co_await expect(region.slice(), mr::usage::none, errc::not_supported);
  co_await expect(region.slice(), mr::usage::send, errc::not_supported);
  auto closed = co_await register_zeros(8, {.usage = open_wide});
  co_await expect(closed.slice(), open_wide, errc::access_denied);
  auto buffer = co_await zeroed(pool(), 8);
  co_await expect(buffer.slice(), open_wide, errc::access_denied);
  const mr::registration_options purpose{.usage = mr::usage::bind_window};
  auto foreign = co_await elsewhere.domain().register_memory(std::vector<std::byte>(8), purpose);
  co_await expect(foreign.slice(), open_wide, errc::wrong_device);
  co_await client.close();
  static_cast<void>(co_await server.recv());
  const auto late = co_await code_of(server.expose(region.slice(), open_wide));
  EXPECT_TRUE(late == errc::peer_closed || late == errc::closed) << late.message();
  co_await region.release();  // none of them holds it
}

TEST_P_WINDOWS(windows, that_are_retired_keep_their_region_until_the_peer_is_done) {
  auto region = co_await bindable(64);
  auto source = co_await filled(pool(), 64, 1);
  std::optional<mr::remote_region> there;
  {
    auto part = co_await server.expose(region.slice(), open_wide);
    there = part.remote();
    part.retire();
    EXPECT_EQ(server.statistics().retired_bytes, 64u);
  }
  co_await write_and_flush(client, source, *there);
  EXPECT_TRUE(holds(region.bytes(), 1));
  const auto busy = co_await code_of(region.release());
  EXPECT_EQ(busy, errc::busy);
  server.confirm_retired(there->key());
  co_await region.release();
}

TEST_P_TASK_WHERE(windows, of_a_region_that_is_disabled_are_closed_until_it_is_enabled,
                  device().domain().capabilities().gates, "this device has windows of enabled regions alone") {
  auto region = co_await register_zeros(64, {.usage = mr::usage::bind_window, .disabled = true});
  auto source = co_await filled(pool(), 64, 1);
  for (const bool writes : {true, false}) {
    auto early = co_await connect_pair();
    const auto closed = co_await early.server.expose(region.slice(), open_wide);
    if (writes) static_cast<void>(co_await failure_of(early.client.write(source, closed.remote())));
    EXPECT_TRUE(co_await code_of(early.client.flush(closed.remote())));
    EXPECT_TRUE(is_zero(region.bytes()));
  }
  auto ends = co_await connect_pair();
  const auto part = co_await ends.server.expose(region.slice(), open_wide);
  co_await mr::porting::enable(region);
  co_await write_and_flush(ends.client, source, part.remote());
  EXPECT_TRUE(holds(region.bytes(), 1));
}

TEST_P_WINDOWS(windows, count_what_peers_write_with_the_counter_of_their_region) {
  auto region = co_await register_zeros(64, {.usage = mr::usage::bind_window, .disabled = true});
  const mr::porting::write_counter counter;
  mr::porting::bind(region, counter);
  co_await mr::porting::enable(region);
  const mr::usage atomics = client.capabilities().atomics ? mr::usage::atomic_dst : mr::usage::none;
  const auto part = co_await server.expose(region.slice(), open_wide | atomics);
  auto source = co_await filled(pool(), 64, 1);
  co_await client.write(source, part.remote());
  co_await counter.wait_for(1);
  if (client.capabilities().atomics) {
    const auto word = part.remote().slice(0, 8);
    const std::uint64_t before = co_await client.fetch_add(word, 1);
    co_await client.compare_swap(word, before, 7);  // finds something else, and changes nothing
    co_await client.compare_swap(word, before + 1, 7);
    co_await counter.wait_for(3);
    co_await client.flush(word);
    EXPECT_EQ(counter.value(), 3u);
  }
}

}  // namespace
}  // namespace weft::test

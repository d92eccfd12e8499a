// SPDX-License-Identifier: Apache-2.0
// Counting what peers write, whether the fabric sees it for itself or the peer has to tell.
#include <weft/mr/porting/porting.hpp>

#include "peers.hpp"

namespace weft::test {
namespace {

constexpr mr::usage counted_uses = mr::usage::write_dst | mr::usage::read_src;
constexpr std::size_t counted_block = 512;

class write_counters : public peers {
 protected:
  void SetUp() override {
    if (!opens_regions()) GTEST_SKIP() << no_open_regions;
  }
  [[nodiscard]] bool has_gates() { return device().domain().capabilities().gates; }

  [[nodiscard]] task<mr::region> closed(std::size_t bytes, mr::usage uses = counted_uses) {
    return register_zeros(bytes, {.usage = uses, .disabled = true});
  }
  [[nodiscard]] static std::error_code why_no_key(const mr::region& of) {
    return code_thrown_by([&] { return of.remote(); });
  }
  /// A region whose writes that one counts.
  [[nodiscard]] task<mr::region> counted(std::size_t bytes, const mr::porting::write_counter& counter) {
    mr::region made = co_await closed(bytes);
    mr::porting::bind(made, counter);
    co_await mr::porting::enable(made);
    co_return made;
  }
};
WEFT_ON_EVERY_TRANSPORT(write_counters);

TEST_P_BETWEEN(write_counters, count_every_element_of_a_list) {
  constexpr std::uint32_t blocks = 200;
  const mr::porting::write_counter counter;
  const mr::region there = co_await counted(blocks * counted_block, counter);
  const mr::buffer source = co_await filled(pool(), blocks * counted_block, 1);
  std::vector<net::block_pair> pairs(blocks);
  for (std::uint32_t i = 0; i != blocks; ++i) pairs[i] = {.local = i, .remote = blocks - 1 - i};
  const net::block_list list{
      .local = source.slice(), .remote = there.remote(), .block_bytes = counted_block, .blocks = pairs};
  co_await client.write(list);
  EXPECT_EQ(co_await counter.wait_for(blocks), blocks);
  for (std::uint32_t i = 0; i != blocks; ++i) {
    EXPECT_TRUE(std::ranges::equal(there.bytes().subspan((blocks - 1 - i) * counted_block, counted_block),
                                   source.bytes().subspan(i * counted_block, counted_block)));
  }
  co_await client.read(list);  // is no write
  EXPECT_EQ(counter.value(), blocks);
}

TEST_P_BETWEEN(write_counters, count_a_write_of_many_bytes_once_and_when_all_are_there) {
  constexpr std::size_t large = (std::size_t{8} << 20) - 64;
  const mr::porting::write_counter counter;
  const mr::region there = co_await counted(large, counter);
  for (unsigned i = 1; i != 4; ++i) {
    const mr::buffer source = co_await filled(pool(), large, i);
    co_await client.write(source.slice(), there.remote());
    co_await counter.wait_for(i);
    EXPECT_TRUE(holds(there.bytes(), i));
    co_await client.flush(there.remote());
    EXPECT_EQ(counter.value(), i);
  }
}

TEST_P_BETWEEN(write_counters, tell_the_parts_of_a_list_apart_by_their_regions) {
  const std::array<mr::porting::write_counter, 3> counters;
  std::vector<mr::region> regions;
  for (const auto& each : counters) regions.push_back(co_await counted(64, each));
  mr::region plain = co_await closed(64);
  co_await mr::porting::enable(plain);
  const mr::buffer source = co_await filled(pool(), 64, 1);
  std::vector<net::list_part> parts;
  for (std::size_t i = 0; i != 40; ++i) {
    const mr::region& to = i % 4 == 3 ? plain : regions[i % 4];
    parts.push_back({.local = source.slice(), .remote = to.remote()});
    if (i % 8 == 0) parts.push_back({.local = source.slice(0, 0), .remote = to.remote().slice(64, 0)});
  }
  co_await client.write(parts);
  constexpr std::array<std::uint64_t, 3> expected{15, 10, 10};
  for (std::size_t i = 0; i != counters.size(); ++i) {
    const std::uint64_t seen = co_await counters[i].wait_for(expected[i]);
    EXPECT_EQ(seen, expected[i]) << i;
  }
}

TEST_P_TASK(write_counters, sum_up_what_many_connections_write) {
  constexpr std::size_t each = 100;
  const mr::porting::write_counter counter;
  mr::region there = co_await counted(64, counter);
  connected first = co_await connect_pair();
  connected second = co_await connect_pair();
  const mr::buffer source = co_await filled(pool(), 64, 1);
  const auto write = [&](net::connection& from) -> task<> {
    for (std::size_t i = 0; i != each; ++i) co_await from.write(source.slice(), there.remote());
  };
  const auto write_all = [&](scope& all) -> task<> {
    for (net::connection* const from : {&first.client, &first.server, &second.client, &second.server}) {
      all.spawn(write(*from));
    }
    co_await mr::porting::remote_writes(there, 4 * each);
  };
  co_await with_scope(on_failure::stop_siblings, write_all);
  EXPECT_EQ(counter.value(), 4 * each);
  co_await there.release();
}

TEST_P_TASK(write_counters, know_all_when_the_peer_has_closed) {
  const mr::porting::write_counter first;
  const mr::porting::write_counter second;
  const mr::region here = co_await counted(64, first);
  const mr::region there = co_await counted(64, second);
  connected ends = co_await connect_pair();
  const mr::buffer source = co_await filled(pool(), 64, 1);
  for (std::size_t i = 0; i != 30; ++i) {
    co_await ends.client.write(source.slice(), here.remote());
    co_await ends.client.write(source.slice(), there.remote());
  }
  co_await ends.client.flush(there.remote());
  const auto finish = [&]() -> task<> { co_await ends.client.close(); };
  const auto receive = [&]() -> task<> {
    EXPECT_FALSE(co_await ends.server.recv());
    EXPECT_EQ(first.value(), 30u);
    EXPECT_EQ(second.value(), 30u);
    co_await ends.server.close();
  };
  co_await when_all(finish(), receive());
}

TEST_P_BETWEEN(write_counters, are_reached_while_the_peer_sends_no_messages_that_anybody_takes,
               options({.receive_depth = 1}), options({.receive_depth = 1})) {
  const mr::porting::write_counter counter;
  const mr::region there = co_await counted(64, counter);
  const mr::buffer source = co_await filled(pool(), 64, 1);
  co_await client.send(source.slice());  // nobody takes it: there is no credit left
  for (std::uint64_t i = 1; i != 20; ++i) {
    co_await client.write(source.slice(), there.remote());
    co_await counter.wait_for(i);
  }
}

TEST_P_WINDOWS(write_counters, count_a_write_whose_task_has_gone_once_it_is_done) {
  constexpr std::size_t large = (std::size_t{8} << 20) - 64;  // takes many turns on its way
  const mr::porting::write_counter counter;
  const mr::region there = co_await counted(large, counter);
  mr::buffer source = co_await filled(pool(), large, 1);
  attempt writing(tasks, client.write(source, there.remote()));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(writing), errc::canceled);
  EXPECT_TRUE(writing.posted());
  co_await counter.wait_for(1);
  EXPECT_TRUE(holds(there.bytes(), 1));
  EXPECT_EQ(counter.value(), 1u);
}

TEST_P_TASK(write_counters, outlive_connections_that_break_off_in_the_middle_of_writes_and_of_what_they_tell) {
  for (unsigned turns = 0; turns != 24; ++turns) {
    const mr::porting::write_counter counter;
    mr::region there = co_await counted(64, counter);
    {
      connected ends = co_await connect_pair();
      const mr::buffer source = co_await filled(pool(), 64, 1);
      const auto write = [&]() -> task<> {
        for (;;) co_await ends.client.write(source.slice(), there.remote());
      };
      const auto both = [&](scope& around) -> task<> {
        attempt writing(around, write());
        for (unsigned i = 0; i != turns; ++i) co_await yield();
        (turns % 2 == 0 ? ends.client : ends.server).abort();
        co_await writing.end();
        EXPECT_TRUE(writing.code());
      };
      co_await with_scope(on_failure::stop_siblings, both);
    }
    if (turns % 3 == 0) co_await there.release();  // or its end, while a peer may still tell
  }
}

TEST_P_BETWEEN(write_counters, that_a_peer_cannot_be_told_of_refuse_its_writes,
               options({.profile = net::profile::interop}), options({.profile = net::profile::interop})) {
  const mr::porting::write_counter counter;
  const mr::region there = co_await counted(64, counter);
  const mr::buffer source = co_await filled(pool(), 64, 1);
  const std::vector<net::list_part> parts(3, {.local = source.slice(), .remote = there.remote()});
  const auto write = co_await code_of(client.write(source.slice(), there.remote()));
  const auto list = co_await code_of(client.write(parts));
  if (client.capabilities().sees_writes) {
    EXPECT_EQ(write, std::error_code());
    EXPECT_EQ(list, std::error_code());
    co_await counter.wait_for(4);
  } else {
    EXPECT_EQ(write, errc::not_supported);
    EXPECT_EQ(list, errc::not_supported);
    EXPECT_TRUE(is_zero(there.bytes()));
  }
}

TEST_P_BETWEEN(write_counters, of_regions_that_are_disabled_have_no_keys_where_the_device_cannot_keep_them_closed) {
  mr::region made = co_await closed(64, counted_uses | (has_windows() ? mr::usage::bind_window : mr::usage::none));
  EXPECT_FALSE(mr::porting::enabled(made));
  EXPECT_EQ(why_no_key(made), has_gates() ? std::error_code() : errc::access_denied);
  if (has_windows()) {
    EXPECT_EQ(co_await code_of(server.expose(made.slice(), counted_uses)),
              has_gates() ? std::error_code() : errc::invalid_argument);
  }
  EXPECT_EQ(co_await code_of(mr::porting::refresh(made)), has_gates() ? std::error_code() : errc::invalid_argument);
  co_await mr::porting::enable(made);
  EXPECT_TRUE(mr::porting::enabled(made));
  EXPECT_EQ(why_no_key(made), std::error_code());
  co_await mr::porting::enable(made);  // again, which changes nothing
  co_await mr::porting::refresh(made);
  EXPECT_TRUE(mr::porting::enabled(made));
  if (opens_regions()) {
    auto source = co_await filled(pool(), 64, 1);
    co_await write_and_flush(client, source, made.remote());
    EXPECT_TRUE(holds(made.bytes(), 1));
  }
  co_await made.release();
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Peers that reach for memory which they were not given, by keys of whole regions: they end their own connection, every
// operation on it ends, and not a byte changes.

#include "peers.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

constexpr std::size_t page = 4096;
constexpr mr::usage every_access = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;

enum class access { write, read, count };
constexpr std::array accesses{access::write, access::read, access::count};

class violations : public peers {
 protected:
  void SetUp() override {
    if (!opens_regions()) GTEST_SKIP() << no_open_regions;
  }
  /// Memory of whose three pages peers are given the middle one.
  struct target {
    std::vector<std::byte> memory = std::vector<std::byte>(3 * page);
    mr::region region;
    std::optional<mr::remote_region> open;
  };

  task<> open(target& where, mr::usage uses) {
    fill(where.memory, 9);
    const std::span<std::byte> middle = std::span(where.memory).subspan(page, page);
    where.region = co_await device().domain().register_memory(middle, {.usage = uses & usable()});
    where.open = where.region.remote();
  }
  [[nodiscard]] mr::usage usable() { return device().domain().capabilities().usages; }

  task<> reach(net::connection& peer, access how, mr::buffer& local, mr::remote_slice where) {
    if (how == access::write) co_await peer.write(local, where);
    if (how == access::read) co_await peer.read(local, where);
    if (how == access::count) static_cast<void>(co_await peer.fetch_add(where, 1));
  }

  /// Reaches for the eight bytes at `where` in ways that are not allowed.
  task<> expect_refused(const target& victim, mr::remote_slice where, std::span<const access> ways) {
    for (const access how : ways) {
      auto ends = co_await connect_pair();
      if (how == access::count && !ends.client.capabilities().atomics) continue;
      const auto body = [&](scope& tasks) -> task<> { co_await expect_refused(ends, where, how, tasks); };
      co_await with_scope(on_failure::stop_siblings, body);
      EXPECT_TRUE(holds(victim.memory, 9)) << "access " << static_cast<int>(how);
    }
  }

  task<> expect_refused(connected& ends, mr::remote_slice where, access how, scope& tasks) {
    auto local = co_await zeroed(pool(), 8);
    auto note = co_await zeroed(pool(), 8);
    attempt at_client(tasks, ends.client.recv());
    attempt at_server(tasks, ends.server.recv());
    attempt reaching(tasks, reach(ends.client, how, local, where));
    attempt behind(tasks, reach(ends.client, access::read, note, where));
    co_await reaching.end();
    co_await behind.end();
    co_await at_client.end();
    co_await at_server.end();
    // siw does not tell who has asked why a connection has ended, and tells who has refused only now and then.
    const errc here = is_rnic() ? errc::peer_vanished : errc::remote_access;
    const errc there = late_ ? late_access() : errc::protocol_error;
    // A write over TCP is done before the peer has seen it.
    if (how != access::write || !(GetParam().writes_precede_refusals || is_rnic())) {
      EXPECT_TRUE(has_ended_by(here, reaching)) << reaching.words();
      EXPECT_TRUE(reaching.posted());
    }
    EXPECT_FALSE(behind.succeeded());
    EXPECT_TRUE(has_ended_by(here, at_client)) << at_client.words();
    const bool untold = is_rnic() && at_server.code() == errc::peer_vanished;
    EXPECT_TRUE(has_ended_by(there, at_server) || untold) << at_server.words();
    EXPECT_TRUE(is_zero(local.bytes()) && is_zero(note.bytes()));
  }

  static bool has_ended_by(errc why, const attempt& what) {
    const bool is_overtaken = GetParam().ends_overtake_refusals && what.code() == errc::peer_vanished;
    return what.code() == why || is_overtaken;
  }

  /// The eight bytes from `offset` on of what begins where `open` does, whoever allows it.
  static mr::remote_slice forged(const mr::remote_region& open, std::uint32_t key, std::uint64_t offset) {
    return {key, open.address() + offset, 8, every_access};
  }

  bool late_ = false;  // by a key that this end has revoked
};
WEFT_ON_EVERY_TRANSPORT(violations);

TEST_P_TASK(violations, by_a_key_that_was_never_given) {
  target victim;
  co_await open(victim, every_access);
  const std::uint32_t wrong = test::stag_of(*victim.open) ^ 0xFFF;
  co_await expect_refused(victim, forged(*victim.open, wrong, 0), accesses);
  co_await victim.region.release();
}

TEST_P_TASK(violations, by_the_key_of_memory_that_is_no_longer_registered) {
  target victim;
  co_await open(victim, every_access);
  co_await victim.region.release();
  late_ = true;
  co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), 0), accesses);
}

TEST_P_TASK(violations, beyond_the_end) {
  target victim;
  co_await open(victim, every_access);
  for (const std::uint64_t offset : {page, page + 8, 2 * page - 8, std::size_t{1} << 40}) {
    co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), offset), accesses);
  }
  constexpr std::array unaligned{access::write, access::read};
  co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), page - 7), unaligned);
  co_await victim.region.release();
}

TEST_P_TASK(violations, without_the_right) {
  target victim;
  co_await open(victim, mr::usage::read_src);
  constexpr std::array changes{access::write, access::count};
  co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), 0), changes);
  co_await victim.region.release();
  if (is_rnic()) co_return;  // siw has peers read whatever they have a key of

  co_await open(victim, mr::usage::write_dst);
  constexpr std::array reads{access::read, access::count};
  co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), 0), reads);
  co_await victim.region.release();
}

TEST_P_WINDOWS(violations, leave_other_connections_of_the_same_device_alone) {
  const auto own = co_await expose_zeros(server, 100);
  target victim;
  co_await open(victim, every_access);
  co_await expect_refused(victim, forged(*victim.open, test::stag_of(*victim.open), page), accesses);
  auto source = co_await filled(pool(), 100, 1);
  co_await write_and_flush(client, source, own.remote());
  EXPECT_TRUE(holds(own.memory().bytes(), 1));
  co_await victim.region.release();
}

}  // namespace
}  // namespace weft::test

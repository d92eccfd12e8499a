// SPDX-License-Identifier: Apache-2.0
// Modes of registration that providers ask for: fi_mr(3).
#include <weft/net/fabric/device.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include "demanding_library.hpp"
#include "kit/buffers.hpp"
#include "kit/clock.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::array single_modes{FI_MR_LOCAL,      FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY,
                                  FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_ENDPOINT};

// None, each, each two, and all.
std::vector<int> combinations() {
  std::vector<int> modes{0, net::fabric::honoured_mr_modes};
  for (const int first : single_modes) {
    for (const int second : single_modes) {
      const int both = first | second;
      if (std::find(modes.begin(), modes.end(), both) == modes.end()) modes.push_back(both);
    }
  }
  return modes;
}

class fabric_modes : public testing::TestWithParam<int> {};

task<> writes_and_reads_what_is_open(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::size_t bytes = 3000;
  auto room = co_await pool.allocate(bytes);
  auto own = co_await filled_with(pool, bytes, std::byte{0x5a});
  auto seen = co_await pool.allocate(bytes);
  auto open = co_await server.expose(std::move(room), mr::usage::write_dst | mr::usage::read_src);
  co_await client.write(own, open.remote(), {.immediate = 7});
  const auto told = co_await server.recv_or_throw();
  EXPECT_EQ(told.immediate, 7u);
  co_await client.read(seen, open.remote());
  EXPECT_TRUE(std::ranges::equal(seen.bytes(), own.bytes()));
  const auto back = co_await open.revoke();
  EXPECT_TRUE(std::ranges::equal(back.bytes(), own.bytes()));
}

task<> changes_a_word(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::uint64_t before = 40;
  auto room = co_await pool.allocate(sizeof before);
  std::memcpy(room.data(), &before, sizeof before);
  auto open = co_await server.expose(std::move(room), mr::usage::atomic_dst);
  EXPECT_EQ(co_await client.fetch_add(open.remote(), 2), before);
  const auto back = co_await open.revoke();
  std::uint64_t after = 0;
  std::memcpy(&after, back.data(), sizeof after);
  EXPECT_EQ(after, before + 2);
}

// Two at once, while the peer writes to both.
task<> takes_back_what_is_in_use(net::connection& client, net::connection& server, mr::pool& pool) {
  constexpr std::size_t bytes = 100'000;
  auto source = co_await pool.allocate(bytes);
  auto first_room = co_await pool.allocate(bytes);
  auto second_room = co_await pool.allocate(bytes);
  auto first = co_await server.expose(std::move(first_room), mr::usage::write_dst);
  auto second = co_await server.expose(std::move(second_room), mr::usage::write_dst);
  std::array writes{client.write(source, first.remote()), client.write(source, second.remote())};
  co_await client.batch(writes);
  const auto [back, other_back] = co_await when_all(first.revoke(), second.revoke());
  EXPECT_EQ(back.size() + other_back.size(), 2 * bytes);
}

task<> revokes_a_key_of_the_peer(net::connection& client, net::connection& server, mr::pool& pool) {
  auto room = co_await pool.allocate(100);
  auto open = co_await server.expose(std::move(room), mr::usage::read_src);
  auto note = co_await pool.allocate(1);
  co_await client.send(std::move(note), {.invalidate = open.remote().key()});
  static_cast<void>(co_await server.recv_or_throw());
  EXPECT_EQ(open.ended_by(), net::exposure_end::peer);
  static_cast<void>(co_await open.revoke());
}

TEST_P(fabric_modes, of_registration_are_kept) {
  demanding_library library(GetParam());
  with_peers(library, [&](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    for (int rounds = 0; rounds != 3; ++rounds) {
      co_await exchange(client, server, pool);
      co_await exchange(server, client, pool);
      co_await writes_and_reads_what_is_open(client, server, pool);
      co_await takes_back_what_is_in_use(server, client, pool);
      if (client.capabilities().atomics) co_await changes_a_word(client, server, pool);
      co_await revokes_a_key_of_the_peer(client, server, pool);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(all, fabric_modes, testing::ValuesIn(combinations()),
                         [](const auto& test) { return names_of_modes(test.param); });

// The key of a region that has been closed is the next region's, while the peer has yet to say that it is done. The
// clock stands, because a link soon doubts a provider that keeps silent.
TEST(fabric_keys, that_the_provider_uses_again_are_let_go_of_with_both_regions) {
  demanding_library library(FI_MR_PROV_KEY);
  manual_clock time;
  const auto script = [&](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    auto source = co_await pool.allocate(8);
    auto first_room = co_await pool.allocate(8);
    auto second_room = co_await pool.allocate(8);
    auto first = co_await server.expose(std::move(first_room), mr::usage::write_dst);
    auto second = co_await server.expose(std::move(second_room), mr::usage::write_dst);
    const std::size_t regions = library.regions();
    library.lose_requests();
    const auto writing = [&]() -> task<> {
      std::array writes{client.write(source, first.remote()), client.write(source, second.remote())};
      co_await client.batch(writes);
    };
    const auto revoking = [&]() -> task<> {
      while (library.lost() != 2) co_await yield();
      co_await when_all(first.revoke(), second.revoke());
    };
    const auto finding = [&]() -> task<> {
      while (library.regions() + 2 != regions) co_await yield();
      for (int turns = 0; turns != 1000; ++turns) co_await yield();  // the peer is asked meanwhile
      library.find_lost_requests();
    };
    co_await when_all(writing(), revoking(), finding());
    co_await exchange(client, server, pool);
  };
  with_peers(library, script, time);
}

TEST(fabric_keys, of_more_than_64_bits_are_refused_when_the_device_is_opened) {
  demanding_library library(FI_MR_RAW);
  const auto failure = failure_thrown_by([&] { return net::fabric::open_transport(provider, library); });
  EXPECT_TRUE(failed_with(failure, errc::not_supported, "FI_MR_RAW"));
}

class fabric_regions : public testing::TestWithParam<int> {};

// The clock stands: the peer's thread may be late with its answers.
TEST_P(fabric_regions, that_were_open_to_all_peers_are_asked_about_when_they_go) {
  using net::fabric::control_record;
  manual_clock time;
  constexpr int regions = 3;
  demanding_library library(GetParam());
  net::device device = net::device::open(net::fabric::open_transport("net", library));
  const auto peer = [](const raw_peer& self) {
    for (int i = 0; i != regions; ++i) {
      const auto asked = self.hear(control_record::fences);
      EXPECT_TRUE(asked) << "about region " << i;
      if (!asked) return;
      self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = asked->key});
    }
    self.wait_for_the_end();
  };
  const auto script = [&](net::connection& server, net::device&) -> task<> {
    co_await open_and_release_regions(device, regions);
    server.abort();
  };
  with_raw_peer(device, "net", peer, script, time);
  EXPECT_EQ(library.broken_rules(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(keys, fabric_regions, testing::Values(0, FI_MR_PROV_KEY),
                         [](const auto& test) { return names_of_modes(test.param); });

TEST(fabric_memory, that_is_not_there_is_refused_before_the_provider_sees_it) {
  demanding_library library(FI_MR_ALLOCATED | FI_MR_LOCAL);
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  run([&]() -> task<> {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* const mapped = ::mmap(nullptr, 3 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::span<std::byte> memory(static_cast<std::byte*>(mapped), 3 * page);
    ::munmap(memory.data() + page, page);
    const mr::registration_options purpose{.usage = mr::usage::send};
    const auto registering = [&]() -> task<> { static_cast<void>(co_await device.register_memory(memory, purpose)); };
    EXPECT_TRUE(co_await failure_of(registering()));
    ::munmap(memory.data(), page);
    ::munmap(memory.data() + 2 * page, page);
  });
  EXPECT_EQ(library.broken_rules(), std::vector<std::string>());
}

}  // namespace
}  // namespace weft::test

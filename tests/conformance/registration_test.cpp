// SPDX-License-Identifier: Apache-2.0
// Registered memory that peers know by other addresses than its own, or that changes while it is registered.
#include <array>
#include <cstdint>
#include <memory>

#include "peers.hpp"

namespace weft::test {
namespace {

constexpr mr::usage local_uses = mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src;
constexpr mr::usage all_uses = local_uses | mr::usage::read_src | mr::usage::write_dst;
constexpr std::size_t bytes = 8192;

// As an iova demands it: at the start of a page.
struct alignas(4096) pages : std::array<std::byte, bytes> {};

class registrations : public peers {
 protected:
  [[nodiscard]] bool has_iova() { return device().domain().capabilities().iova; }

  task<mr::region> registered(mr::registration_options options) {
    auto memory = std::make_unique<pages>();
    co_return co_await device().domain().register_memory(std::move(memory), options);
  }

  /// Peers write to it and read from it, and so do we, from `offset` on.
  task<> serves_both_sides(net::connection& peer, mr::region& region, std::size_t offset) {
    const std::size_t length = bytes - offset;
    auto source = co_await filled(pool(), length, 1);
    co_await peer.write(source, region.remote().slice(offset, length));
    co_await peer.flush(region.remote().slice(offset, length));
    EXPECT_TRUE(holds(region.bytes().subspan(offset), 1));

    auto other = co_await registered({.usage = all_uses});
    co_await peer.write(region.slice(offset, length), other.remote().slice(offset, length));
    co_await peer.flush(other.remote());
    EXPECT_TRUE(holds(other.bytes().subspan(offset), 1));
    fill(other.bytes(), 2);
    co_await peer.read(region.slice(), other.remote());
    EXPECT_TRUE(holds(region.bytes(), 2));
  }
};
WEFT_ON_EVERY_TRANSPORT(registrations);

TEST_P(registrations, at_an_iova_serve_peers_there_and_us_at_their_own_address) {
  if (!has_iova()) GTEST_SKIP() << "this device does not heed an iova";
  between_peers([&](net::connection& client, net::connection&) -> task<> {
    constexpr std::uint64_t iova = 0x7000'0000'0000;
    auto region = co_await registered({.usage = all_uses, .iova = iova});
    EXPECT_EQ(region.remote().address(), iova);
    co_await serves_both_sides(client, region, 0);
    co_await serves_both_sides(client, region, 4100);
  });
}

TEST_P(registrations, that_start_at_zero_serve_peers_there_and_us_at_their_own_address) {
  if (!has_iova()) GTEST_SKIP() << "this device does not heed an iova";
  between_peers([&](net::connection& client, net::connection&) -> task<> {
    auto region = co_await registered({.usage = all_uses, .zero_based = true});
    EXPECT_EQ(region.remote().address(), 0u);
    co_await serves_both_sides(client, region, 0);
    co_await serves_both_sides(client, region, 1);
  });
}

TEST_P(registrations, made_anew_serve_what_they_are_for_now) {
  between_peers([&](net::connection& client, net::connection&) -> task<> {
    auto region = co_await registered({.usage = local_uses});
    co_await region.reregister({.usage = all_uses});
    co_await serves_both_sides(client, region, 0);
    if (!has_iova()) co_return;
    co_await region.reregister({.usage = all_uses, .iova = 0x7000'0000'0000});
    EXPECT_EQ(region.remote().address(), 0x7000'0000'0000u);
    co_await serves_both_sides(client, region, 4100);
  });
}

TEST_P(registrations, made_anew_elsewhere_leave_the_old_place_alone) {
  pages before{};
  pages after{};
  between_peers([&](net::connection& client, net::connection&) -> task<> {
    mr::registration_options options;
    options.usage = all_uses;
    auto region = co_await device().domain().register_memory(std::span<std::byte>(before), options);
    co_await region.reregister(std::span<std::byte>(after), options);
    co_await serves_both_sides(client, region, 0);
    co_await region.release();
  });
  EXPECT_TRUE(is_zero(before));
}

TEST_P(registrations, at_an_iova_can_bear_windows) {
  if (!mr::includes(device().domain().capabilities().usages, mr::usage::bind_window)) {
    GTEST_SKIP() << "this device has no memory windows";
  }
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    auto region = co_await registered({.usage = all_uses | mr::usage::bind_window, .iova = 0x7000'0000'0000});
    const auto part = co_await server.bind(region.slice(100, 50), mr::usage::write_dst | mr::usage::read_src);
    auto source = co_await filled(pool(), 50, 1);
    co_await client.write(source, part.remote());
    co_await client.flush(part.remote());
    EXPECT_TRUE(holds(region.bytes().subspan(100, 50), 1));
    EXPECT_TRUE(is_zero(region.bytes().first(100)));
  });
}

}  // namespace
}  // namespace weft::test

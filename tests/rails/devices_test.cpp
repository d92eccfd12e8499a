// SPDX-License-Identifier: Apache-2.0
// Rails of RDMA devices, simulated, and what they and their connections go through.

#include "ends.hpp"
#include "simulated.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t spread_bytes = mebibyte / 4;  // the least that goes over both
constexpr duration until_it_is_back = 200us;        // between two writes: there would be thousands
enum class way : std::uint8_t { verbs, iwarp };
struct pair_of_ways {
  const char* name;
  std::array<way, 2> ways;
};

// A device with two rails, both ends of a connection over them, and what they lie in.
class simulated_rails : public testing::TestWithParam<pair_of_ways> {
 protected:
  void SetUp() override { open(1, {}); }
  void TearDown() override { close(); }

  void open(std::uint64_t seed, const sim::conditions& like, const sim::rdma_traits& device = {}) {
    close();
    place_ = std::make_unique<simulated_place>(seed, like);
    std::vector<std::unique_ptr<net::transport>> ways;
    for (std::size_t i = 0; i < 2; ++i) {
      cables_[i] = std::make_shared<cable>();
      auto inner = GetParam().ways[i] == way::verbs ? place_->open_verbs(device) : place_->open_iwarp();
      auto name = std::string(inner->name()) + ":" + std::to_string(i);
      ways.push_back(std::make_unique<breakable_transport>(std::move(name), cables_[i], std::move(inner)));
    }
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place_->world}};
    device_.emplace(net::device::open(net::rails::open_transport(std::move(ways)), options));
  }
  // A device without rails, of the first of the two kinds.
  void open_plain(std::uint64_t seed, const sim::conditions& like) {
    close();
    place_ = std::make_unique<simulated_place>(seed, like);
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place_->world}};
    auto only = GetParam().ways[0] == way::verbs ? place_->open_verbs() : place_->open_iwarp();
    device_.emplace(net::device::open(std::move(only), options));
  }
  void close() {
    device_.reset();
    cables_ = {};
    if (place_ != nullptr) place_->expect_nothing_left();
    place_.reset();
  }

  [[nodiscard]] cable& first() noexcept { return *cables_[0]; }
  [[nodiscard]] cable& second() noexcept { return *cables_[1]; }
  [[nodiscard]] sim::rdma& device_of(std::size_t rail) noexcept {
    const std::size_t before = rail == 1 && GetParam().ways[0] == way::verbs ? 1 : 0;
    return *std::next(place_->devices.begin(), static_cast<std::ptrdiff_t>(before));
  }
  [[nodiscard]] mr::pool& pool() noexcept { return device_->pool(); }
  [[nodiscard]] duration elapsed() const noexcept { return place_->world.elapsed(); }

  void between_ends(const test_script<ends>& script, const net::connection_options& how = {}) {
    executor home(place_->world.options(false));
    const bool is_plain = cables_[0] == nullptr;
    const char* const address = is_plain ? "127.0.0.1:0" : "127.0.0.1:0+127.0.0.1:0";
    home.run(with_timeout(forever, with_ends(*device_, *device_, address, how, script)));
  }

  task<mr::buffer> filled(std::size_t bytes, unsigned seed) { return test::filled(pool(), bytes, seed); }
  task<net::exposure> expose_zeros(net::connection& at, std::size_t bytes) {
    return test::expose_zeros(pool(), at, bytes);
  }
  // Moves data until both have carried some of it: then both are there at both ends.
  task<> until_both_carry(net::connection& client, const net::exposure& target, duration pause = {}) {
    auto source = co_await filled(spread_bytes, 0);
    for (const auto& each : cables_) {
      for (const std::uint64_t before = each->moved; each->moved == before;) {
        co_await client.write(source, target.remote().slice(0, spread_bytes));
        if (pause != duration{}) co_await sleep_for(pause);
      }
    }
  }
  task<net::exposure> spread_target(ends both, std::size_t bytes) {
    auto made = co_await expose_zeros(both.server, bytes);
    co_await until_both_carry(both.client, made);
    co_return made;
  }
  // Everything that a connection does, with the bytes and the order that it promises.
  task<> expect_all_works(ends both, const net::exposure& target, unsigned seed) {
    auto source = co_await filled(spread_bytes, seed);
    co_await both.client.write(source, target.remote().slice(0, spread_bytes));
    co_await both.client.send(source.slice(0, 100));
    EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), seed));
    EXPECT_TRUE(holds(target.memory().bytes().first(spread_bytes), seed));
    auto copy = co_await pool().allocate(spread_bytes);
    co_await both.client.read(copy, target.remote().slice(0, spread_bytes));
    EXPECT_TRUE(holds(copy.bytes(), seed));
    co_await both.server.send(copy.slice(0, 50));
    EXPECT_TRUE(holds((co_await both.client.recv_or_throw()).bytes(), seed));
  }

  two_cables cables_;

 private:
  std::unique_ptr<simulated_place> place_;
  std::optional<net::device> device_;
};

TEST_P(simulated_rails, carry_a_transfer_together) {
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, spread_bytes);
    for (unsigned seed = 1; seed < 4; ++seed) co_await expect_all_works(both, target, seed);
  });
}

// Three slices at a time, of which two go over the first of two rails that are alike.
TEST(rails_of_devices_far_apart, carry_more_where_the_memory_is) {
  simulated_place place;
  std::array<std::shared_ptr<cable>, 2> cables{std::make_shared<cable>(), std::make_shared<cable>()};
  std::vector<std::unique_ptr<net::transport>> ways;
  for (std::size_t node = 0; node != 2; ++node) {
    auto inner = place.open_verbs({.numa_node = static_cast<int>(node), .bytes_per_us = 1000});
    ways.push_back(
        std::make_unique<breakable_transport>("verbs:" + std::to_string(node), cables[node], std::move(inner)));
  }
  const net::device_options options{.pool = {.huge_pages = false, .numa_node = 1, .system_calls = &place.world}};
  {
    net::device device = net::device::open(net::rails::open_transport(std::move(ways)), options);
    EXPECT_EQ(device.pool().numa_node(), 1);
    executor home(place.world.options(false));
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:0+127.0.0.1:0");
      auto both = co_await when_all(device.connect(std::string(listener.address())), listener.accept());
      net::connection client = std::move(std::get<0>(both));
      net::connection server = std::move(*std::get<1>(both));
      constexpr std::size_t three_slices = 3 * (std::size_t{128} << 10);
      auto room = co_await device.pool().allocate(three_slices, mr::budget::receive);
      const auto target = co_await server.expose(std::move(room), open_wide);
      auto source = co_await device.pool().allocate(three_slices);
      while (cables[0]->moved == 0 || cables[1]->moved == 0) co_await client.write(source, target.remote());
      const std::array before{cables[0]->moved, cables[1]->moved};
      for (int i = 0; i != 10; ++i) co_await client.write(source, target.remote());
      EXPECT_EQ(cables[0]->moved - before[0], 10u);
      EXPECT_EQ(cables[1]->moved - before[1], 20u);
    };
    home.run(with_timeout(forever, body()));
  }
  place.expect_nothing_left();
}

TEST_P(simulated_rails, go_on_when_either_is_cut_at_any_request) {
  for (std::size_t which = 0; which < 2; ++which) {
    for (const unsigned at : {1u, 9u}) {
      SCOPED_TRACE(testing::Message() << "rail " << which << " before request " << at);
      between_ends([&](ends both) -> task<> {
        const auto target = co_await spread_target(both, spread_bytes);
        unsigned seen = 0;
        cables_[which]->is_cut_before = [&](const net::work_request&) { return ++seen == at; };
        for (unsigned seed = 1; seed < 4; ++seed) co_await expect_all_works(both, target, seed);
        co_await until_both_carry(both.client, target, until_it_is_back);
      });
    }
  }
}

TEST_P(simulated_rails, go_on_when_a_device_breaks_a_queue_pair_off) {
  for (std::size_t which = 0; which < 2; ++which) {
    if (GetParam().ways[which] != way::verbs) continue;
    SCOPED_TRACE(which);
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, spread_bytes);
      for (std::uint16_t port = 50'000; port < 50'020; ++port) device_of(which).break_off(port);
      for (unsigned seed = 1; seed < 4; ++seed) co_await expect_all_works(both, target, seed);
      co_await until_both_carry(both.client, target, until_it_is_back);
    });
  }
}

// Its sender has heard so from the device, and does not send it again.
TEST_P(simulated_rails, bring_what_a_device_has_taken_before_its_queue_pair_ended) {
  if (GetParam().ways[0] != way::verbs) GTEST_SKIP() << "messages go over iWARP";
  constexpr unsigned messages = 12;
  for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    open(seed, {.longest_delay_ns = 3'000});
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, spread_bytes);
      const auto send_all = [&](net::connection& from) -> task<> {
        for (unsigned i = 0; i < messages; ++i) {
          auto note = co_await filled(64, i);
          co_await from.send(note);
        }
      };
      const auto receive_all = [&](net::connection& at) -> task<> {
        for (unsigned i = 0; i < messages; ++i) {
          const auto note = co_await at.recv_or_throw();
          EXPECT_TRUE(holds(note.bytes(), i)) << "message " << i;
        }
      };
      for (std::uint16_t port = 50'000; port < 50'020; ++port) device_of(0).fail_post(port, seed % 2 == 0);
      co_await when_all(send_all(both.client), receive_all(both.server), send_all(both.server),
                        receive_all(both.client));
    });
  }
}

TEST_P(simulated_rails, go_on_when_a_device_is_removed) {
  for (std::size_t which = 0; which < 2; ++which) {
    if (GetParam().ways[which] != way::verbs) continue;
    SCOPED_TRACE(which);
    open(2, {});
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, spread_bytes);
      device_of(which).remove();
      for (unsigned seed = 1; seed < 4; ++seed) co_await expect_all_works(both, target, seed);
      const auto later = co_await expose_zeros(both.server, spread_bytes);
      co_await expect_all_works(both, later, 5);
    });
  }
}

TEST_P(simulated_rails, bring_a_message_that_gives_memory_back_once_no_rail_reaches_it) {
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, spread_bytes);
    const auto lent = co_await expose_zeros(both.server, spread_bytes);
    auto source = co_await filled(spread_bytes, 3);
    co_await both.client.write(source, lent.remote());
    for (unsigned i = 0; i < 3; ++i) {
      net::send_options how;
      if (i == 1) how.invalidate = lent.remote().key();
      co_await both.client.send(source.slice(i, 10), how);
    }
    for (unsigned i = 0; i < 3; ++i) {
      const auto message = co_await both.server.recv_or_throw();
      EXPECT_EQ(message.invalidated_key.has_value(), i == 1);
      EXPECT_TRUE(std::equal(message.bytes().begin(), message.bytes().end(), source.bytes().begin() + i));
    }
    EXPECT_TRUE(holds(lent.memory().bytes(), 3));
    std::fill(source.bytes().begin(), source.bytes().end(), std::byte{0});
    const auto refused = co_await as_result(both.client.write(source, lent.remote()));
    EXPECT_FALSE(co_await as_result(both.client.recv_or_throw()));
    EXPECT_TRUE(!refused || GetParam().ways[0] == way::iwarp);
    EXPECT_TRUE(holds(lent.memory().bytes(), 3));
  });
}

TEST_P(simulated_rails, say_it_again_when_the_message_that_gives_memory_back_is_lost_with_its_rail) {
  for (const unsigned at : {1u, 2u}) {
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, spread_bytes);
      const auto lent = co_await expose_zeros(both.server, 100);
      auto source = co_await filled(100, 3);
      co_await both.client.write(source, lent.remote());
      first().cut_before(net::work_kind::send, at);
      co_await both.client.send(source, {.invalidate = lent.remote().key()});
      const auto message = co_await both.server.recv_or_throw();
      EXPECT_EQ(message.invalidated_key, lent.remote().key());
      EXPECT_TRUE(holds(message.bytes(), 3));
      co_await expect_all_works(both, target, 4);
    });
  }
}

// ---- what they cost and carry ----

TEST_P(simulated_rails, of_equal_speed_carry_nearly_twice_what_one_does) {
  const auto time_of = [&](bool with_second) {
    const sim::conditions network{.short_share = 0, .bytes_per_us = 125};
    const sim::rdma_traits device{.bytes_per_us = 125};
    open(3, network, device);
    duration taken{};
    between_ends([&](ends both) -> task<> {
      const auto target = co_await expose_zeros(both.server, 4 * mebibyte);
      if (with_second) {
        co_await until_both_carry(both.client, target);
      } else {
        second().is_down = true;
        second().cut();
      }
      auto source = co_await filled(4 * mebibyte, 1);
      const duration before = elapsed();
      co_await both.client.write(source, target.remote());
      co_await both.client.flush(target.remote().slice(0, 1));
      taken = elapsed() - before;
      EXPECT_TRUE(holds(target.memory().bytes(), 1));
    });
    return taken;
  };
  const auto one = time_of(false);
  const auto two = time_of(true);
  EXPECT_GT(10 * one, 18 * two) << one.count() << " ns over one, " << two.count() << " over two";
}

// Messages go over one rail. Their time is that of the way there and back, and no reason to spread less over that rail.
TEST_P(simulated_rails, are_as_fast_as_what_is_large_goes_over_them) {
  open(3, {.longest_delay_ns = 1'000'000}, {});
  between_ends([&](ends both) -> task<> {
    const auto target = co_await expose_zeros(both.server, 4 * mebibyte);
    co_await until_both_carry(both.client, target);
    auto source = co_await filled(4 * mebibyte, 1);
    co_await both.client.write(source, target.remote());
    const auto rates = [&] {
      std::vector<std::uint64_t> found;
      for (const auto& each : both.client.rails()) found.push_back(each.bytes_per_second);
      return found;
    };
    const auto before = rates();
    for (unsigned i = 0; i < 20; ++i) {
      co_await both.client.send(source.slice(0, 16));
      static_cast<void>(co_await both.server.recv_or_throw());
    }
    EXPECT_EQ(rates(), before);
  });
}

TEST_P(simulated_rails, take_hardly_longer_than_one_link_for_what_is_small) {
  if (GetParam().ways[0] != GetParam().ways[1]) GTEST_SKIP() << "which link would that be?";
  enum class what : std::uint8_t { message, read, write };
  constexpr int count = 500;
  const auto exchange_all = [&](ends both) -> task<> {
    auto there = co_await pool().allocate(64);
    for (int i = 0; i < count; ++i) {
      co_await both.client.send(there);
      const auto asked = co_await both.server.recv_or_throw();
      co_await both.server.send(there.slice(0, asked.size()));
      static_cast<void>(co_await both.client.recv_or_throw());
    }
  };
  const auto time_of = [&](what kind) {
    duration taken{};
    between_ends([&](ends both) -> task<> {
      const auto target = co_await expose_zeros(both.server, spread_bytes);
      if (cables_[0] != nullptr) co_await until_both_carry(both.client, target);
      auto memory = co_await pool().allocate(64);
      const duration before = elapsed();
      if (kind == what::message) co_await exchange_all(both);
      for (int i = 0; kind == what::read && i < count; ++i) {
        co_await both.client.read(memory, target.remote().slice(0, 64));
      }
      for (int i = 0; kind == what::write && i < count; ++i) {
        co_await both.client.write(memory, target.remote().slice(0, 64));
      }
      taken = elapsed() - before;
    });
    return taken;
  };
  // Over iWARP alone a write completes before it has come anywhere.
  const bool writes = GetParam().ways[0] == way::verbs;
  for (const what kind : {what::message, what::read, what::write}) {
    if (kind == what::write && !writes) continue;
    open_plain(7, {});
    const duration plain = time_of(kind);
    open(7, {});
    const duration railed = time_of(kind);
    EXPECT_LE(10 * railed, 11 * plain) << static_cast<int>(kind) << ": " << plain.count() << " ns over one link, "
                                       << railed.count() << " over two rails";
  }
}

constexpr std::array kinds{pair_of_ways{"verbs_and_verbs", {way::verbs, way::verbs}},
                           pair_of_ways{"verbs_and_iwarp", {way::verbs, way::iwarp}},
                           pair_of_ways{"iwarp_and_verbs", {way::iwarp, way::verbs}},
                           pair_of_ways{"iwarp_and_iwarp", {way::iwarp, way::iwarp}}};
std::string name_of(const testing::TestParamInfo<pair_of_ways>& kind) { return kind.param.name; }
INSTANTIATE_TEST_SUITE_P(kinds, simulated_rails, testing::ValuesIn(kinds), name_of);

}  // namespace
}  // namespace weft::test

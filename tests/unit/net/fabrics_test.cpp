// SPDX-License-Identifier: Apache-2.0
// One device of several fabrics. Each is iWARP, some of which reach nobody: what is tested is what lies above them.
#include <weft/mr/porting/porting.hpp>
#include <weft/net/device/found_transport.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/link/joint_listener.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/net/software/domain.hpp>

#include "kit/disk_file.hpp"
#include "kit/forwarding_transport.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

/// iWARP under another name, which may be unable to connect or listen and has no shared receives.
class named_fabric final : public forwarding_transport {
 public:
  enum class reach : std::uint8_t { everybody, nobody, at_another_port, one_that_rejects };

  named_fabric(std::string name, reach how)
      : forwarding_transport(net::iwarp::open_transport()), name_(std::move(name)), how_(how) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    if (how_ == reach::nobody) throw error(errc::connection_failed, "a cable is out");
    if (how_ == reach::one_that_rejects) throw error(errc::peer_rejected, "not today");
    co_return co_await inner().connect(address, options);
  }
  [[nodiscard]] task<std::unique_ptr<net::link_listener>> listen(std::string_view address,
                                                                 const net::listen_options& options) override {
    if (how_ == reach::nobody) throw error(errc::not_supported, "that address is not its own");
    co_return co_await inner().listen(how_ == reach::at_another_port ? "127.0.0.1:0" : address, options);
  }
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    return net::transport::share_receives(depth);
  }

 private:
  const std::string name_;
  const reach how_;
};

using reach = named_fabric::reach;

class fabrics : public net_test {
 protected:
  net::device& open_fabrics(std::initializer_list<reach> those) {
    std::vector<net::found_transport> all;
    for (const reach how : those) {
      all.push_back({.made = std::make_unique<named_fabric>("fabric" + std::to_string(all.size()), how)});
    }
    return keep(net::open_found(std::move(all)));
  }

  /// Either end reaches the other's memory, however the other's device counts its fabrics.
  static task<> expect_access(net::device& from, net::connection& at, net::device& to) {
    std::vector<std::byte> bytes(4096, std::byte{7});
    auto region = co_await to.register_memory(
        std::span(bytes), {.usage = mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst});
    const auto packed = region.remote().pack();
    const auto there = mr::remote_region::unpack(packed);
    auto local = co_await from.allocate(64);
    co_await at.read(local, there.slice(100, 64));
    EXPECT_EQ(local.data()[63], std::byte{7});
    local.data()[0] = std::byte{9};
    co_await at.write(local, there.slice(200, 64));
    co_await at.flush(there.slice(200, 1));
    EXPECT_EQ(bytes[200], std::byte{9});
    co_await region.release();
  }
};

TEST_F_TASK(fabrics, of_a_device_share_one_pool_and_one_domain_and_are_all_in_its_name) {
  net::device& device = open_fabrics({reach::everybody, reach::everybody});
  EXPECT_EQ(device.name(), "fabric0,fabric1");
  auto region =
      co_await device.register_memory(std::vector<std::byte>(100), {.usage = mr::usage::read_src | mr::usage::send});
  const mr::remote_region remote = region.remote();
  EXPECT_EQ(remote.places().size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(remote.places()[i].fabric, i);
    EXPECT_EQ(remote.places()[i].key, region.slice().record()->in(i).remote_key);
  }
  EXPECT_EQ(remote.pack().size(), 40u);
  const mr::buffer buffer = co_await device.allocate(100);
  EXPECT_EQ(buffer.slice().domain(), &device.domain());
  co_await region.release();
}

TEST_F_TASK(fabrics, a_connection_takes_the_first_that_reaches_the_peer_and_says_which) {
  net::device& both = open_fabrics({reach::everybody, reach::everybody});
  net::device& second = open_fabrics({reach::nobody, reach::everybody});
  auto here = co_await connected(both, second);
  EXPECT_EQ(here.client.fabric(), "fabric0");
  EXPECT_EQ(here.server.fabric(), "fabric1");
  co_await expect_access(both, here.client, second);
  co_await expect_access(second, here.server, both);
  auto there = co_await connected(second, both);
  EXPECT_EQ(there.client.fabric(), "fabric1");
  co_await expect_access(second, there.client, both);
  co_await expect_access(both, there.server, second);
}

TEST_F_TASK(fabrics, a_device_of_one_and_a_device_of_several_understand_each_others_keys) {
  net::device& one = keep(net::device::open("iwarp"));
  net::device& third = open_fabrics({reach::nobody, reach::nobody, reach::everybody});
  auto here = co_await connected(one, third);
  co_await expect_access(one, here.client, third);
  co_await expect_access(third, here.server, one);
  auto lent = co_await third.allocate(64);
  auto open = co_await here.server.expose(std::move(lent), mr::usage::write_dst);
  EXPECT_EQ(open.remote().places().size(), 1u);
  EXPECT_EQ(open.remote().places().front().fabric, 2);
  auto payload = co_await one.allocate(64);
  co_await here.client.write(payload, open.remote());
  co_await here.client.close();
}

TEST_F_TASK(fabrics, that_cannot_reach_the_peer_each_say_why) {
  net::device& nowhere = open_fabrics({reach::nobody, reach::nobody});
  std::vector<std::unique_ptr<net::transport>> ways;
  ways.push_back(std::make_unique<named_fabric>("fabric0", reach::nobody));
  ways.push_back(std::make_unique<named_fabric>("fabric1", reach::nobody));
  net::device& rails = keep(net::device::open(net::rails::open_transport(std::move(ways))));
  const std::string a_cable_is_out = error(errc::connection_failed, "a cable is out").what();
  const std::string each = "over fabric0: " + a_cable_is_out + "; over fabric1: " + a_cable_is_out;
  for (net::device* const from : {&nowhere, &rails}) {
    const auto failure = co_await failure_of(from->connect("127.0.0.1:1"));
    EXPECT_TRUE(failed_with(failure, errc::connection_failed));
    EXPECT_TRUE(std::string_view(failure->what()).ends_with(": " + each)) << failure->what();
  }
  const auto deaf = co_await failure_of(nowhere.listen("127.0.0.1:0"));
  EXPECT_TRUE(contains(deaf, "over fabric0: ") && contains(deaf, "over fabric1: ")) << deaf->what();
}

TEST_F_TASK(fabrics, that_failed_before_the_peer_rejected_another_each_say_why) {
  net::device& device = open_fabrics({reach::nobody, reach::one_that_rejects, reach::everybody});
  const auto failure = co_await failure_of(device.connect("127.0.0.1:1"));
  EXPECT_TRUE(failed_with(failure, errc::peer_rejected));
  EXPECT_TRUE(contains(failure, "over fabric0: a cable is out") && contains(failure, "; over fabric1: not today"))
      << failure->what();
}

// The last fabric reaches the most peers, so that its failure tells the most.
TEST_F_TASK(fabrics, that_failed_before_a_port_was_found_taken_over_another_each_say_why) {
  net::device& network = keep(net::device::open("iwarp"));
  net::device& memory = keep(net::device::open("shm"));
  net::device& none_listens = open_fabrics({reach::everybody, reach::nobody});
  std::vector<net::found_transport> all;
  all.push_back({.made = net::shm::open_transport({})});
  all.push_back({.made = std::make_unique<named_fabric>("fabric1", reach::everybody)});
  all.push_back({.made = std::make_unique<named_fabric>("fabric2", reach::nobody)});
  net::device& one_listens = keep(net::open_found(std::move(all)));
  const auto expect_both = [](net::device& at, const net::listener& taken, const char* widest) -> task<> {
    const auto failure = co_await failure_of(at.listen(std::string(taken.address())));
    EXPECT_TRUE(failed_with(failure, std::errc::address_in_use));
    EXPECT_TRUE(contains(failure, widest) && contains(failure, "Address already in use")) << failure->what();
  };
  const auto of_network = co_await network.listen("127.0.0.1:0");
  co_await expect_both(none_listens, of_network, "over fabric1: that address is not its own");
  const auto of_memory = co_await memory.listen("127.0.0.1:0");
  co_await expect_both(one_listens, of_memory, "over fabric2: that address is not its own");
}

// Not as something that is not supported, for it is.
TEST_F_TASK(fabrics, none_of_which_can_listen_at_an_address_say_why_in_the_systems_words) {
  net::device& device = open_fabrics({reach::everybody, reach::everybody});
  const auto elsewhere = co_await failure_of(device.listen("192.0.2.1:7471"));
  EXPECT_TRUE(failed_with(elsewhere, std::errc::address_not_available));
  EXPECT_TRUE(
      std::string_view(elsewhere->what()).ends_with("over fabric1: bind the address: Cannot assign requested address"))
      << elsewhere->what();
  EXPECT_EQ((co_await failure_of(device.listen("7471")))->code(), errc::invalid_address);
}

TEST_F_TASK(fabrics,
            memory_of_the_peers_without_a_place_on_the_connections_fabric_is_refused_before_anything_is_posted) {
  net::device& device = open_fabrics({reach::everybody, reach::nobody});
  auto both = co_await connected(device, device);
  const mr::remote_place other{.fabric = 1, .address = 0, .key = 7};
  const mr::remote_region elsewhere({&other, 1}, 64, mr::usage::write_dst);
  auto payload = co_await device.allocate(64);
  const auto failure = co_await failure_of(both.client.write(payload, elsewhere));
  EXPECT_TRUE(failure && failure->code() == errc::wrong_device && !failure->posted());
  EXPECT_TRUE(contains(failure, "fabric"));
  const mr::remote_region too_large(std::uint64_t{1} << 32, 0, 64, mr::usage::write_dst);
  EXPECT_EQ(co_await code_of(both.client.write(payload, too_large)), errc::invalid_argument);
  co_await both.client.close();
}

TEST_F_TASK(fabrics, one_of_which_cannot_register_memory_leave_it_registered_with_none) {
  net::device& device = open_fabrics({reach::everybody, reach::everybody});
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(
      co_await code_of(device.register_memory(std::span(bytes), {.usage = mr::usage::read_src, .requested_key = 7})),
      errc::not_supported);
  EXPECT_EQ(co_await code_of(device.register_memory(std::span(bytes), {.usage = mr::usage::flush_persistent})),
            errc::not_supported);
  EXPECT_EQ(device.domain().statistics().regions, 0u);
  EXPECT_EQ(co_await code_of(device.share_receives()), errc::not_supported);  // neither of these has any
}

// Nor when the region has no key of its own before it is enabled.
TEST_F(fabrics, of_which_there_are_four_leave_no_room_for_persistent_flushes) {
  if (!disk_file::is_possible()) GTEST_SKIP() << "the directory of the build is not on a disk";
  constexpr reach all = reach::everybody;
  const disk_file file(4096);
  const auto register_with = [&](net::device& device, bool disabled) {
    mr::registration_options how{.usage = mr::usage::write_dst | mr::usage::flush_persistent};
    how.disabled = disabled;
    return code_of(device.domain().register_memory(file.mapped(4096), how));
  };
  net::device& three = open_fabrics({all, all, all});
  net::device& four = open_fabrics({all, all, all, all});
  run([&]() -> task<> {
    for (const bool disabled : {false, true}) {
      EXPECT_EQ(co_await register_with(three, disabled), std::error_code());
      EXPECT_EQ(co_await register_with(four, disabled), errc::not_supported);
    }
  });
}

TEST_F_TASK(fabrics, a_region_is_enabled_and_refreshed_with_all_of_them) {
  net::device& device = open_fabrics({reach::everybody, reach::everybody});
  auto both = co_await connected(device, device);
  const mr::registration_options options{.usage = mr::usage::read_src | mr::usage::write_dst, .disabled = true};
  auto region = co_await device.register_memory(std::vector<std::byte>(4096), options);
  co_await mr::porting::enable(region);
  const mr::remote_region before = region.remote();
  co_await mr::porting::refresh(region);
  const mr::remote_region after = region.remote();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NE(before.places()[i].key, after.places()[i].key);
  auto local = co_await device.allocate(64);
  co_await both.client.write(local, region.remote().slice(0, 64));
  co_await both.client.close();
  co_await region.release();
}

TEST_F_TASK(fabrics, whoever_stops_waiting_for_a_peer_loses_none) {
  net::device& device = open_fabrics({reach::everybody, reach::nobody, reach::everybody});
  auto listener = co_await device.listen("127.0.0.1:0");
  EXPECT_EQ(co_await code_of(with_timeout(0ms, listener.next())), errc::timed_out);
  auto both = co_await when_all(device.connect(std::string(listener.address())), listener.accept());
  EXPECT_TRUE(std::get<1>(both).has_value());
  listener.close();
  EXPECT_FALSE((co_await listener.next()).has_value());
}

class request_at_hand final : public net::link_request {
 public:
  [[nodiscard]] std::string_view peer() const noexcept override { return "somebody"; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return {}; }
  task<std::unique_ptr<net::link>> accept(const net::set_up_options&) override { co_return nullptr; }
  task<> reject(std::span<const std::byte>) override { co_return; }
};

class listener_with_peers_at_hand final : public net::link_listener {
 public:
  [[nodiscard]] std::string_view address() const noexcept override { return "here"; }
  task<std::unique_ptr<net::link_request>> next() override {
    if (closed_) co_return nullptr;
    co_return std::make_unique<request_at_hand>();
  }
  void close() noexcept override { closed_ = true; }

 private:
  bool closed_ = false;
};

TEST_F_TASK(fabrics, that_are_closed_yield_no_peer_that_has_come_before) {
  std::vector<net::fabric_listener> parts;
  for (std::size_t i = 0; i < 2; ++i) parts.emplace_back(i, std::make_unique<listener_with_peers_at_hand>());
  const auto both = net::join_listeners(std::move(parts), net::failed_listener::is_reported);
  EXPECT_NE(co_await both->next(), nullptr);
  both->close();
  EXPECT_EQ(co_await both->next(), nullptr);
}

// A task in the background waits at each fabric for whoever waits for a peer, and so nothing is lost with that one.
TEST_F_TASK(fabrics, whoever_waits_for_a_peer_may_be_destroyed_at_any_turn_of_its_set_up) {
  net::device& device = open_fabrics({reach::everybody, reach::at_another_port});
  net::device& second = open_fabrics({reach::nobody, reach::everybody});
  const auto next = [](net::listener& from) -> sim::loose_task { static_cast<void>(co_await from.next()); };
  const auto accept = [](net::listener& from) -> sim::loose_task { static_cast<void>(co_await from.accept()); };
  const auto connect = [](net::device& from, std::string address) -> task<> {
    static_cast<void>(co_await as_result(from.connect(address)));
  };
  std::array<std::byte, 1> mark{std::byte{1}};
  const auto serve_one = [&](net::listener& from) -> task<> {
    for (;;) {  // those that were left behind come first
      auto peer = co_await from.accept();
      if (!peer->peer_private_data().empty()) co_return;
    }
  };
  for (int turns = 0; turns < 60; ++turns) {
    auto listener = co_await device.listen("127.0.0.1:0");
    const std::string address(listener.address());
    const auto meet = [&](scope& children) -> task<> {
      children.spawn(connect(second, address));
      const sim::loose_task waiting = turns % 2 == 0 ? next(listener) : accept(listener);
      waiting.start(*executor::current());
      for (int i = 0; i < turns || !waiting.at_rest(); ++i) co_await yield();
      children.request_stop();
    };
    co_await with_scope(on_failure::stop_siblings, meet);
    auto both = co_await when_all(device.connect(address, {.private_data = mark}), serve_one(listener));
    std::get<0>(both).abort();
  }
}

TEST_F_TASK(fabrics, are_all_named_by_the_schemes_of_streams) {
  net::device& both = open_fabrics({reach::nobody, reach::everybody});
  auto listener = co_await net::stream_listener::listen(both, "fabric1://127.0.0.1:0");
  auto connecting = net::stream::connect(both, "fabric0://" + std::string(listener.address()));
  auto both_ends = co_await when_all(std::move(connecting), listener.accept());
  EXPECT_TRUE(std::get<0>(both_ends).is_open());
  const auto failure = co_await failure_of(net::stream::connect(both, "verbs://127.0.0.1:1"));
  EXPECT_TRUE(contains(failure, "unknown scheme; use \"fabric0://\", \"fabric1://\" or \"tcp://\"")) << failure->what();
  std::get<0>(both_ends).abort();
}

TEST(device_names, of_a_list_are_each_known_and_named_once) {
  const auto words = [](std::string_view names) { return words_thrown_by([&] { return net::device::open(names); }); };
  EXPECT_NE(words("iwarp,iwarp").find("iwarp is in the list twice"), std::string::npos);
  EXPECT_NE(words("iwarp,").find("this build knows: auto, iwarp"), std::string::npos);
  EXPECT_NE(words("iwarp,auto").find("\"auto\" is unknown"), std::string::npos);
  EXPECT_NE(words("iwarp:lo").find("\"iwarp:lo\" is unknown"), std::string::npos);
  EXPECT_NE(words(",iwarp").find("\"\" is unknown"), std::string::npos) << words(",iwarp");
  EXPECT_NE(words("tcp").find("\"tcp\" is unknown (RDMA over TCP is iwarp)"), std::string::npos) << words("tcp");
  for (const std::string name : {"ib", "rdma", "roce"}) {
    EXPECT_NE(words(name).find("(RDMA devices are verbs)"), std::string::npos) << words(name);
  }
  EXPECT_NE(words("pigeon").find("open device \"pigeon\""), std::string::npos);
}

}  // namespace
}  // namespace weft::test

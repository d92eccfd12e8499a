// SPDX-License-Identifier: Apache-2.0
// Devices that reach peers of this machine through shared memory, and all others through a network.
#include <weft/mr/pool.hpp>
#include <weft/net/device/found_transport.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/shm/transport.hpp>

#include <netinet/in.h>

#include "kit/buffers.hpp"
#include "kit/failing_system_calls.hpp"
#include "kit/forwarding_transport.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

/// Has no Unix sockets, as in a container whose seccomp filter forbids them.
class no_unix_sockets final : public system_calls {
 public:
  int socket(int domain, int type, int protocol) noexcept override {
    return domain == AF_UNIX ? -EPERM : system_calls::socket(domain, type, protocol);
  }
};

/// Another program takes the first ports that are bound by number, of one family of addresses, before the device does.
class faster_program final : public system_calls {
 public:
  explicit faster_program(int family) noexcept : family_(family) {}

  int bind(int fd, const sockaddr* address, unsigned length) noexcept override {
    if (ports != others_.size() && takes(*address)) {
      const int type = family_ == AF_UNIX ? SOCK_SEQPACKET : SOCK_STREAM;
      others_[ports] = descriptor(system_calls::socket(family_, type, 0), kernel());
      EXPECT_EQ(system_calls::bind(others_[ports].fd(), address, length), 0);
      EXPECT_EQ(system_calls::listen(others_[ports].fd(), 1), 0);
      ++ports;
    }
    return system_calls::bind(fd, address, length);
  }

  std::size_t ports = 0;

 private:
  [[nodiscard]] bool takes(const sockaddr& address) const noexcept {
    if (address.sa_family != family_ || family_ == AF_UNIX) return address.sa_family == family_;
    return reinterpret_cast<const sockaddr_in&>(address).sin_port != 0;
  }

  const int family_;
  std::array<descriptor, 3> others_;
};

/// A fabric whose transport has no shared receives.
class without_shared_receives final : public forwarding_transport {
 public:
  without_shared_receives() : forwarding_transport(net::iwarp::open_transport()) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "plain"; }
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    return net::transport::share_receives(depth);
  }
};

class same_host : public net_test {
 protected:
  static constexpr net::device_options through_the_network{.shm = {.automatic = false}};

  /// At a listener whose connections share receives.
  static task<connection_ends> meet(net::device& from, net::listener& at, net::shared_receives& shared) {
    auto ends = co_await when_all(from.connect(std::string(at.address())), at.accept({.receives = &shared}));
    auto& accepted = std::get<1>(ends);
    co_return connection_ends{std::move(std::get<0>(ends)), std::move(*accepted)};
  }
  static task<> exchange(net::device& from, connection_ends& ends) {
    co_await ends.client.send(co_await filled_with(from.pool(), 5, std::byte{7}));
    const auto got = co_await ends.server.recv_or_throw();
    EXPECT_EQ(got.size(), 5u);
    EXPECT_EQ(got.bytes()[4], std::byte{7});
  }
  static task<> close(connection_ends& ends) { co_await when_all(ends.client.close(), ends.server.close()); }
  /// On an executor of its own.
  static void run_with(system_calls& calls, const std::function<task<>()>& body) {
    executor home({.system_calls = &calls});
    home.run(with_timeout(60s, body()));
  }

  net::device& both_ways = keep(net::device::open("shm,iwarp"));
  net::device& network = keep(net::device::open("iwarp"));
};

TEST_F_TASK(same_host, peers_are_reached_through_shared_memory_although_their_address_is_a_networks) {
  for (const char* const address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::1]:0"}) {
    connection_ends ends = co_await connected(both_ways, both_ways, address);
    EXPECT_EQ(ends.client.fabric(), "shm") << address;
    EXPECT_EQ(ends.server.fabric(), "shm") << address;
    EXPECT_EQ(ends.client.passed_over(), "");
    co_await exchange(both_ways, ends);
    co_await close(ends);
  }
}

TEST_F_TASK(same_host, peers_without_shared_memory_are_reached_through_the_network_and_the_reason_can_be_read) {
  connection_ends there = co_await connected(both_ways, network);
  EXPECT_EQ(there.client.fabric(), "iwarp");
  EXPECT_TRUE(there.client.passed_over().starts_with("over shm: ")) << there.client.passed_over();
  co_await exchange(both_ways, there);
  co_await close(there);
  connection_ends back = co_await connected(network, both_ways);
  EXPECT_EQ(back.client.fabric(), "iwarp");
  EXPECT_EQ(back.client.passed_over(), "");
  co_await exchange(network, back);
  co_await close(back);
}

TEST_F(same_host, a_machine_that_forbids_it_falls_back_to_the_network) {
  no_unix_sockets no_sockets;
  failing_system_calls no_files{{.of = system_call::memfd_create, .number = EPERM}};
  for (system_calls* const calls : std::initializer_list<system_calls*>{&no_sockets, &no_files}) {
    net::device device = net::device::open("shm,iwarp");
    run_with(*calls, [&]() -> task<> {
      auto listener = co_await device.listen("127.0.0.1:0");
      // A peer that has found no memory for the channel has failed, and the next one is served.
      std::optional<net::connection> served;
      const auto serve = [&]() -> task<> {
        while (!served) {
          auto request = co_await listener.next();
          if (auto accepted = co_await as_result(request->accept())) served.emplace(std::move(*accepted));
        }
      };
      auto ends = co_await when_all(device.connect(std::string(listener.address())), serve());
      net::connection& client = std::get<0>(ends);
      EXPECT_EQ(client.fabric(), "iwarp");
      EXPECT_TRUE(client.passed_over().starts_with("over shm: ")) << client.passed_over();
      co_await when_all(client.close(), served->close());
    });
  }
}

TEST_F_TASK(same_host, an_address_that_another_program_has_is_not_listened_on_by_halves) {
  auto taken = co_await network.listen("127.0.0.1:0");
  EXPECT_TRUE(
      failed_with(co_await failure_of(both_ways.listen(std::string(taken.address()))), std::errc::address_in_use));
}

// Its peers on this machine would reach the other program.
TEST_F_TASK(same_host, an_address_that_another_program_has_in_shared_memory_alone_is_not_listened_on_by_halves) {
  net::device& memory = keep(net::device::open("shm"));
  auto taken = co_await memory.listen("127.0.0.1:0");
  const auto failure = co_await failure_of(both_ways.listen(std::string(taken.address())));
  EXPECT_TRUE(failed_with(failure, std::errc::address_in_use));
  const std::string words = failure ? failure->what() : "";
  EXPECT_TRUE(words.ends_with("over shm,iwarp: over shm: bind the address: Address already in use")) << words;
}

TEST_F(same_host, a_port_that_another_program_has_over_one_fabric_is_not_chosen) {
  const auto expect_another = [&](const char* fabrics, int family) {
    faster_program other(family);
    net::device device = net::device::open(fabrics);
    run_with(other, [&]() -> task<> {
      connection_ends ends = co_await connected(device, device);
      EXPECT_EQ(other.ports, 3u);
      EXPECT_EQ(ends.client.fabric(), ends.server.fabric());
      co_await exchange(device, ends);
      co_await close(ends);
    });
  };
  expect_another("shm,iwarp", AF_UNIX);
  expect_another("iwarp,shm", AF_INET);
}

TEST_F_TASK(same_host, one_registration_and_one_descriptor_serve_both_ways) {
  auto region = co_await both_ways.register_memory(std::vector<std::byte>(4096, std::byte{3}),
                                                   {.usage = mr::usage::read_src | mr::usage::write_dst});
  EXPECT_EQ(region.remote().places().size(), 1u);
  connection_ends near = co_await connected(both_ways, both_ways);
  connection_ends far = co_await connected(network, both_ways);
  for (connection_ends* const ends : {&near, &far}) {
    net::device& from = ends == &near ? both_ways : network;
    auto sink = co_await from.allocate(64);
    co_await ends->client.read(sink, region.remote().slice(0, 64));
    EXPECT_EQ(sink.bytes()[63], std::byte{3});
    co_await close(*ends);
  }
  co_await region.release();
}

TEST_F_TASK(same_host, what_is_exposed_over_one_way_is_not_open_over_the_other) {
  for (int round = 0; round < 3; ++round) {
    connection_ends near = co_await connected(both_ways, both_ways);
    connection_ends far = co_await connected(network, both_ways);
    auto memory = co_await both_ways.allocate(64);
    const net::exposure open = co_await near.server.expose(std::move(memory), mr::usage::read_src);
    auto sink = co_await network.allocate(64);
    EXPECT_TRUE(failed_with(co_await failure_of(far.client.read(sink, open.remote())), errc::remote_access));
    near.client.abort();
  }
}

TEST_F_TASK(same_host, receives_are_shared_by_connections_of_both_kinds) {
  auto shared = co_await both_ways.share_receives({.receive_size = 1024, .depth = 8});
  auto listener = co_await both_ways.listen("127.0.0.1:0");
  connection_ends near = co_await meet(both_ways, listener, shared);
  connection_ends far = co_await meet(network, listener, shared);
  EXPECT_EQ(near.server.fabric(), "shm");
  EXPECT_EQ(far.server.fabric(), "iwarp");
  for (int i = 0; i < 20; ++i) {
    co_await exchange(both_ways, near);
    co_await exchange(network, far);
  }
  co_await close(near);
  co_await close(far);
}

// As beside an RDMA device: each fabric has a domain of its own.
net::device open_two_domains() {
  std::vector<net::found_transport> all;
  all.push_back({.made = net::shm::open_transport({})});
  all.push_back({.made = net::iwarp::open_transport()});
  return net::open_found(std::move(all));
}

TEST_F_TASK(same_host, receives_are_shared_by_connections_of_each_kind_where_these_have_domains_of_their_own) {
  net::device& device = keep(open_two_domains());
  EXPECT_EQ(co_await code_of(device.share_receives({.receive_size = 1 << 20, .depth = 100})), errc::no_memory);
  auto shared = co_await device.share_receives({.receive_size = 1024, .depth = 8});
  auto listener = co_await device.listen("127.0.0.1:0");
  std::vector<connection_ends> near;
  std::vector<connection_ends> far;
  for (int i = 0; i < 3; ++i) {
    near.push_back(co_await meet(device, listener, shared));
    far.push_back(co_await meet(network, listener, shared));
    EXPECT_EQ(near.back().server.fabric(), "shm");
    EXPECT_EQ(far.back().server.fabric(), "iwarp");
  }
  for (int i = 0; i < 20; ++i) {
    for (connection_ends& each : near) co_await exchange(device, each);
    for (connection_ends& each : far) co_await exchange(network, each);
  }
  for (connection_ends& each : near) co_await close(each);
  for (connection_ends& each : far) co_await close(each);
}

// Once for all fabrics that they are for: each is handed to its executor.
TEST_F_TASK(same_host, shared_receives_of_both_kinds_end_on_their_executor_when_they_are_destroyed_on_another_thread) {
  for (const bool one_domain : {true, false}) {
    net::device& device = keep(one_domain ? net::device::open("shm,iwarp") : open_two_domains());
    std::optional<net::shared_receives> shared(co_await device.share_receives({.receive_size = 1024, .depth = 8}));
    auto listener = co_await device.listen("127.0.0.1:0");
    connection_ends ends = co_await meet(device, listener, *shared);
    std::thread([&] { shared.reset(); }).join();
    for (int i = 0; i < 20; ++i) {
      co_await yield();
      co_await exchange(device, ends);
    }
    co_await close(ends);
  }
}

TEST_F_TASK(same_host, whose_receives_cannot_be_shared_over_each_kind_has_none) {
  std::vector<net::found_transport> all;
  all.push_back({.made = net::shm::open_transport({})});
  all.push_back({.made = std::make_unique<without_shared_receives>()});
  net::device& device = keep(net::open_found(std::move(all)));
  EXPECT_EQ(co_await code_of(device.share_receives({.receive_size = 1024, .depth = 8})), errc::not_supported);
  EXPECT_EQ(device.pool().statistics().receive.in_use_bytes, 0u);
}

TEST_F(same_host, a_socket_file_reaches_the_fabric_that_knows_it_alone) {
  const auto path = std::filesystem::temp_directory_path() / ("weft-same-host-" + std::to_string(::getpid()));
  run([&]() -> task<> {
    connection_ends ends = co_await connected(both_ways, both_ways, "unix:" + path.string());
    EXPECT_EQ(ends.client.fabric(), "shm");
    co_await close(ends);
    EXPECT_TRUE(failed_with(co_await failure_of(network.connect("unix:" + path.string())), errc::invalid_address));
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F_TASK(same_host, shared_memory_is_chosen_by_itself_unless_it_is_forbidden) {
  net::device& chosen = keep(net::device::open("auto"));
  const net::device& without = keep(net::device::open("auto", through_the_network));
  EXPECT_EQ(chosen.name(), "shm," + std::string(without.name()));
  connection_ends ends = co_await connected(chosen, chosen);
  EXPECT_EQ(ends.client.fabric(), "shm");
  co_await close(ends);
}

}  // namespace
}  // namespace weft::test

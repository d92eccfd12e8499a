// SPDX-License-Identifier: Apache-2.0
// Shared memory as a fabric of a device. Its links carry nothing here, so that what is connected is connected by iWARP.
#include "shm/support.hpp"

namespace weft::test {
namespace {

/// Says that the peer of each Unix socket is of another user.
class all_strangers final : public system_calls {
 public:
  int getsockopt(int fd, int level, int name, void* value, unsigned* length) noexcept override {
    const int result = system_calls::getsockopt(fd, level, name, value, length);
    if (name == SO_PEERCRED && result == 0) static_cast<ucred*>(value)->uid += 1;
    return result;
  }
};

/// Listens under the name of an address, and takes nobody: its backlog is full.
class deaf_name {
 public:
  explicit deaf_name(const shm::unix_name& name) {
    const int type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
    listening_ = descriptor(::socket(AF_UNIX, type, 0), system_calls::kernel());
    EXPECT_EQ(::bind(listening_.fd(), name.data(), name.size()), 0);
    EXPECT_EQ(::listen(listening_.fd(), 0), 0);
    int result = 0;
    while (result == 0) {
      waiting_.emplace_back(::socket(AF_UNIX, type, 0), system_calls::kernel());
      result = ::connect(waiting_.back().fd(), name.data(), name.size());
    }
  }

 private:
  descriptor listening_;
  std::vector<descriptor> waiting_;
};

class shm_devices : public testing::Test {
 protected:
  /// What connects `from` with a listener of `to`.
  static std::string fabric_between(net::device& from, net::device& to, system_calls& calls) {
    executor home({.system_calls = &calls});
    const auto body = [&]() -> task<std::string> {
      auto listener = co_await to.listen("127.0.0.1:0");
      auto both = co_await when_all(from.connect(std::string(listener.address())), listener.accept());
      std::string fabric(std::get<0>(both).fabric());
      std::get<0>(both).abort();
      co_return fabric;
    };
    return home.run(body());
  }
};

TEST_F(shm_devices, pass_who_does_not_listen_there_on_to_the_next_fabric) {
  net::device both = net::device::open("shm,iwarp");
  net::device other = net::device::open("iwarp");
  EXPECT_EQ(fabric_between(both, other, system_calls::kernel()), "iwarp");
}

TEST_F(shm_devices, pass_other_users_on_to_the_next_fabric) {
  net::device one = net::device::open("shm,iwarp");
  net::device other = net::device::open("shm,iwarp");
  all_strangers calls;
  EXPECT_EQ(fabric_between(one, other, calls), "iwarp");
}

// It may cost them shared memory, and not the service. The port is free to TCP, and no other program takes it.
TEST_F(shm_devices, listen_over_the_next_fabric_where_another_user_has_the_name) {
  net::device both = net::device::open("shm,iwarp");
  net::device memory = net::device::open("shm");
  all_strangers calls;
  executor home({.system_calls = &calls});
  const auto body = [&]() -> task<> {
    auto stranger = co_await memory.listen(own_loopback() + ":0");
    auto listener = co_await both.listen(std::string(stranger.address()));
    auto ends = co_await when_all(both.connect(std::string(listener.address())), listener.accept());
    EXPECT_EQ(std::get<0>(ends).fabric(), "iwarp");
    std::get<0>(ends).abort();
  };
  home.run(body());
}

TEST_F(shm_devices, are_not_kept_waiting_by_a_listener_that_takes_nobody) {
  net::device both = net::device::open("shm,iwarp");
  net::device network = net::device::open("iwarp");
  executor home;
  const auto body = [&]() -> task<> {
    std::optional<net::listener> chosen(co_await network.listen(own_loopback() + ":0"));
    const std::string address(chosen->address());
    const deaf_name silent(shm::unix_name::of((co_await resolve(address, false)).front()));
    chosen.reset();
    auto listener = co_await both.listen(address);
    auto connecting = both.connect(address, {.set_up_timeout = 1h});  // of which it must not wait half
    auto accepting = listener.accept({.set_up_timeout = 1h});
    auto ends = co_await when_all(std::move(connecting), std::move(accepting));
    EXPECT_EQ(std::get<0>(ends).fabric(), "iwarp");
    std::get<0>(ends).abort();
  };
  home.run(body());
}

TEST_F(shm_devices, are_opened_by_their_name) {
  EXPECT_EQ(net::device::open("shm").name(), "shm");
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm:0")); }), errc::not_supported);
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm", {.shm = {.ring_bytes = 1}})); }),
            errc::invalid_argument);
}

}  // namespace
}  // namespace weft::test

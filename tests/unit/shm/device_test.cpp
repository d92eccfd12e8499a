// SPDX-License-Identifier: Apache-2.0
// Shared memory as a fabric of a device. Its links carry nothing here, so that what is connected is connected by iWARP.
#include "shm/support.hpp"

namespace weft::test {
namespace {

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

class shm_devices : public with_calls<strangers, shm_test> {
 protected:
  /// What connects the device with who listens there.
  task<std::string> fabric_to(net::listener& listener, net::connection_options how = {}) {
    auto ends = co_await when_all(both.connect(std::string(listener.address()), how), listener.accept(how));
    std::string fabric(std::get<0>(ends).fabric());
    std::get<0>(ends).abort();
    co_return fabric;
  }

  net::device both = net::device::open("shm,iwarp");
};

TEST_F_TASK(shm_devices, pass_who_does_not_listen_there_on_to_the_next_fabric) {
  net::device other = net::device::open("iwarp");
  auto listener = co_await other.listen("127.0.0.1:0");
  EXPECT_EQ(co_await fabric_to(listener), "iwarp");
}

TEST_F_TASK(shm_devices, pass_other_users_on_to_the_next_fabric) {
  calls.are_all = true;
  net::device other = net::device::open("shm,iwarp");
  auto listener = co_await other.listen("127.0.0.1:0");
  EXPECT_EQ(co_await fabric_to(listener), "iwarp");
}

// It may cost them shared memory, and not the service. The port is free to TCP, and no other program takes it.
TEST_F_TASK(shm_devices, listen_over_the_next_fabric_where_another_user_has_the_name) {
  calls.are_all = true;
  net::device memory = net::device::open("shm");
  auto stranger = co_await memory.listen(own_loopback() + ":0");
  auto listener = co_await both.listen(std::string(stranger.address()));
  EXPECT_EQ(co_await fabric_to(listener), "iwarp");
}

TEST_F_TASK(shm_devices, are_not_kept_waiting_by_a_listener_that_takes_nobody) {
  net::device network = net::device::open("iwarp");
  std::optional<net::listener> chosen(co_await network.listen(own_loopback() + ":0"));
  const std::string address(chosen->address());
  const deaf_name silent(shm::unix_name::of((co_await resolve(address, false)).front()));
  chosen.reset();
  auto listener = co_await both.listen(address);
  EXPECT_EQ(co_await fabric_to(listener, {.set_up_timeout = 1h}), "iwarp");  // of which it must not wait half
}

TEST_F(shm_devices, are_opened_by_their_name) {
  EXPECT_EQ(net::device::open("shm").name(), "shm");
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm:0")); }), errc::not_supported);
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm", {.shm = {.ring_bytes = 1}})); }),
            errc::invalid_argument);
}

}  // namespace
}  // namespace weft::test

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

class shm_devices : public testing::Test {
 protected:
  /// What connects `from` with a listener of `to`.
  static std::string fabric_between(net::device& from, net::device& to, system_calls& calls) {
    executor_options chosen;
    chosen.system_calls = &calls;
    executor home(chosen);
    const auto body = [&]() -> task<std::string> {
      auto listener = co_await to.listen("127.0.0.1:0");
      auto connecting = from.connect(std::string(listener.address()));
      auto accepting = listener.accept();
      auto both = co_await when_all(std::move(connecting), std::move(accepting));
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

TEST_F(shm_devices, are_opened_by_their_name) {
  EXPECT_EQ(net::device::open("shm").name(), "shm");
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm:0")); }), errc::not_supported);
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::device::open("shm", {.shm = {.ring_bytes = 1}})); }),
            errc::invalid_argument);
}

}  // namespace
}  // namespace weft::test

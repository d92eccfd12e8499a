// SPDX-License-Identifier: Apache-2.0
// Peers whose machine, or the network to it, is gone without a word.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "peers.hpp"

namespace weft::test {
namespace {

// The loopback of the calling thread's network namespace.
bool switch_loopback(bool on) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  bool done = ::ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(on ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  return done;
}

class cut_link : public peers {
 protected:
  /// Runs `script(client, server)` on a thread with a network of its own; false, with the reason in errno, if there
  /// cannot be one.
  template <class Script>
  bool in_a_network_of_our_own(Script script, net::connection_options how) {
    int failure = 0;
    std::thread([&] {
      if (::unshare(CLONE_NEWNET) != 0 || !switch_loopback(true)) {
        failure = errno;
        return;
      }
      executor there;
      const auto root = [&]() -> task<> {
        connected ends = co_await connect_pair(how, how);
        co_await script(ends.client, ends.server);
      };
      EXPECT_NO_THROW(there.run(with_timeout(forever, root())));
    }).join();
    errno = failure;
    return failure == 0;
  }
};
WEFT_ON_EVERY_TRANSPORT(cut_link);

TEST_P(cut_link, is_noticed_by_who_sends_and_by_who_waits_alike) {
  if (!GetParam().over_a_network) GTEST_SKIP() << "there is nothing to cut";
  const std::string_view address = GetParam().any_address;
  if (!address.starts_with("127.") && !address.starts_with("[::1]")) {
    GTEST_SKIP() << "a network of our own has no " << address;
  }
  const auto watchful = options({.close_timeout = 1s, .dead_peer_after = 1s});
  const auto script = [&](net::connection& client, net::connection& server) -> task<> {
    constexpr std::size_t bytes = std::size_t{16} << 20;  // more than the sockets hold
    const auto open = co_await expose_zeros(server, bytes, mr::usage::write_dst);
    auto source = co_await filled(pool(), bytes, 1);
    EXPECT_TRUE(switch_loopback(false));
    const auto write = [&]() -> task<std::optional<error>> {
      co_return co_await failure_of(client.write(source, open.remote()));
    };
    const auto all = co_await when_all(write(), failure_of(server.recv()), failure_of(client.recv()));
    const auto expect_death = [](const std::optional<error>& failure, bool posted) {
      ASSERT_TRUE(failure);
      EXPECT_TRUE(failed_with(failure, errc::peer_vanished));
      EXPECT_EQ(failure->posted(), posted) << failure->what();
    };
    expect_death(std::get<0>(all), true);
    expect_death(std::get<1>(all), false);
    expect_death(std::get<2>(all), false);
    EXPECT_FALSE(source.in_use());
  };
  if (!in_a_network_of_our_own(script, watchful)) {
    GTEST_SKIP() << "no network namespace of our own: " << std::strerror(errno) << " (it takes CAP_SYS_ADMIN)";
  }
}

}  // namespace
}  // namespace weft::test

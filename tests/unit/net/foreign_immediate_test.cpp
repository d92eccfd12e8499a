// SPDX-License-Identifier: Apache-2.0
// Peers that are not weft and send immediate data, as RDMA devices let them: here what comes over iWARP is given some.
#include <weft/net/iwarp/transport.hpp>

#include "kit/forwarding_link.hpp"
#include "kit/forwarding_transport.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

constexpr std::uint32_t immediate = 0x01020304;

/// Adds immediate data to each message that its link receives.
class adding_link final : public overhearing_link {
 public:
  using overhearing_link::overhearing_link;

 private:
  void received(net::receive_work& work, const net::arrival& what) noexcept override {
    net::arrival more = what;
    more.immediate = immediate;
    overhearing_link::received(work, more);
  }
};

std::unique_ptr<net::transport> open_adding_transport() {
  return std::make_unique<forwarding_transport>(net::iwarp::open_transport(), transport_wrappers{.link = [](auto bare) {
                                                  return std::make_unique<adding_link>(std::move(bare));
                                                }});
}

class foreign_immediate : public net_test {
 protected:
  static net::connection_options foreign() {
    net::connection_options options{.receive_size = 100, .receive_depth = 4, .profile = net::profile::interop};
    return options;
  }

  /// Runs `script(receiver, sender)`: what the sender sends reaches the receiver with immediate data.
  template <class Script>
  void between(Script script, const net::connection_options& how) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      auto both = co_await when_all(receiving_.connect(std::string(listener.address()), how), accept(listener));
      co_await script(std::get<0>(both), std::get<1>(both));
    });
  }

  net::device& receiving_ = keep(net::device::open(open_adding_transport()));
};

#define TEST_F_FOREIGN(fixture, name, options) \
  TEST_F_SCRIPT(fixture, name, (net::connection & receiver, net::connection & sender), between(WEFT_SCRIPT, options))

TEST_F_FOREIGN(foreign_immediate, may_come_any_number_of_times, foreign()) {
  auto sent = co_await pool().allocate(10);
  for (int i = 0; i < 20; ++i) {
    co_await sender.send(sent);
    const auto message = co_await receiver.recv_or_throw();
    EXPECT_EQ(message.immediate, immediate);
    EXPECT_EQ(message.size(), 10u);
  }
}

TEST_F_FOREIGN(foreign_immediate, lets_no_message_through_that_is_larger_than_receive_size, foreign()) {
  co_await sender.send(co_await pool().allocate(100));
  EXPECT_EQ((co_await receiver.recv_or_throw()).size(), 100u);
  static_cast<void>(co_await failure_of(sender.send(co_await pool().allocate(101))));
  EXPECT_TRUE(says(co_await failure_of(receiver.recv()), "larger than receive_size"));
}

TEST_F_FOREIGN(foreign_immediate, from_a_weft_peer_never_comes_with_a_payload, {}) {
  static_cast<void>(co_await failure_of(sender.send(co_await pool().allocate(10))));
  EXPECT_TRUE(says(co_await failure_of(receiver.recv()), "without a valid trailer"));
}

}  // namespace
}  // namespace weft::test

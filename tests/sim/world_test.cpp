// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/transport.hpp>

#include "kit/failure.hpp"
#include "two_ends.hpp"

namespace weft::sim {
namespace {

using namespace std::chrono_literals;

class two_peers : public two_ends {
 public:
  explicit two_peers(std::uint64_t seed = 7)
      : two_ends(seed, [](system_calls& calls) { return net::iwarp::open_transport({}, calls); }) {}
};

// Of who connects, so that it can be harmed.
constexpr std::uint16_t port = 20'000;
const net::connection_options from_port{.source = "127.0.0.1:20000"};

task<> echo(net::connection& peer) {
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
}

// Whatever is cut off: the death is noticed after dead_peer_after, and neither sooner nor never.
TEST(simulated_world, a_link_that_is_cut_in_silence_is_noticed_in_time) {
  two_peers both;
  both.place.at(1s, [&] { both.place.cut(port); });
  const auto wait_for_death = [](net::connection& peer) -> task<> {
    EXPECT_EQ(co_await test::code_of(peer.recv()), errc::peer_vanished);
  };
  both.run(wait_for_death, wait_for_death, {}, from_port);
  EXPECT_GT(both.place.elapsed(), 10s);
  EXPECT_LT(both.place.elapsed(), 12s);
}

// Sends to a peer that takes nothing until ten minutes have passed, which closes its window.
struct busy_receiver {
  static constexpr std::size_t messages = 100;
  std::size_t received = 0;
  std::optional<error> sender_failed;
  time_point ended{};

  void run(two_peers& both) {
    net::connection_options plain{.receive_depth = 4, .profile = net::profile::interop};
    const auto serve = [&](net::connection& peer) -> task<> {
      co_await sleep_for(10min);
      try {
        while (co_await peer.recv()) ++received;
      } catch (const error&) {
      }
    };
    const auto call = [&](net::connection& peer) -> task<> {
      try {
        for (std::size_t i = 0; i < messages; ++i) co_await peer.send(co_await both.device->pool().allocate(4096));
        co_await peer.close();
      } catch (const error& why) {
        sender_failed = why;
      }
      ended = both.place.now();
    };
    net::connection_options ours = plain;
    ours.source = from_port.source;
    both.run(serve, call, plain, ours);
  }
};

TEST(simulated_world, a_peer_that_does_not_read_for_minutes_slows_its_sender_and_nothing_else) {
  two_peers both;
  busy_receiver receiver;
  receiver.run(both);
  EXPECT_FALSE(receiver.sender_failed) << receiver.sender_failed->what();
  EXPECT_EQ(receiver.received, busy_receiver::messages);
}

TEST(simulated_world, a_peer_that_does_not_read_and_is_cut_off_is_noticed_in_time) {
  two_peers both;
  busy_receiver receiver;
  both.place.at(1min, [&] { both.place.cut(port); });
  receiver.run(both);
  ASSERT_TRUE(receiver.sender_failed);
  EXPECT_EQ(receiver.sender_failed->code(), errc::peer_vanished) << receiver.sender_failed->what();
  EXPECT_GE(receiver.ended, time_point() + 1min + 10s);
  EXPECT_LE(receiver.ended, time_point() + 1min + 30s);
}

// What excuses a failure is what has been done, and not what was going to be.
TEST(simulated_world, a_fault_that_finds_nobody_disturbs_nobody) {
  two_peers both;
  const auto harm = [&place = both.place] {
    place.reset(port);
    place.cut(port);
    place.stall(port, 1ms);
    place.damage(port);
    place.fail_send(port, true, ENOBUFS);
  };
  harm();
  const auto call = [&](net::connection& peer) -> task<> {
    co_await peer.close();
    co_await sleep_for(1s);
    harm();
    co_await sleep_for(1s);
  };
  both.run(echo, call, {}, from_port);
  EXPECT_FALSE(both.place.disturbed(port));
  EXPECT_EQ(both.place.faults(), 0U);
}

TEST(simulated_world, a_send_that_shall_fail_disturbs_whoever_sends) {
  two_peers both;
  const auto serve = [](net::connection& peer) -> task<> { static_cast<void>(co_await as_result(peer.recv())); };
  const auto call = [&](net::connection& peer) -> task<> {
    both.place.fail_send(port, true, ENOBUFS);
    EXPECT_FALSE(both.place.disturbed(port));
    mr::buffer large = co_await both.device->pool().allocate(1000);  // small ones leave after their sends
    const auto sent = co_await as_result(peer.send(std::move(large)));
    EXPECT_TRUE(both.place.disturbed(port));
    EXPECT_EQ(both.place.faults(), 1U);
  };
  both.run(serve, call, {}, from_port);
  EXPECT_FALSE(both.place.disturbed(port + 1));
}

}  // namespace
}  // namespace weft::sim

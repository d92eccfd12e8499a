// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <weft/net/iwarp/transport.hpp>
#include <weft/weft.hpp>

#include "kit/test.hpp"

namespace weft::sim {
namespace {

using namespace std::chrono_literals;

net::device open_device(world& place) {
  const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place}};
  return net::device::open(net::iwarp::open_transport({}, place), options);
}

task<> echo(net::listener& from) {
  auto request = co_await from.next();
  net::connection peer = co_await request->accept();
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
}

task<> ask(net::device& device, world& place, int rounds) {
  net::connection peer = co_await device.connect("127.0.0.1:7471");
  for (int i = 0; i < rounds; ++i) {
    mr::buffer question = co_await device.pool().allocate(4 + static_cast<std::size_t>(i) * 37);
    std::fill(question.bytes().begin(), question.bytes().end(), static_cast<std::byte>(i));
    const std::size_t size = question.size();
    co_await peer.send(std::move(question));
    const net::message answer = co_await peer.recv_or_throw();
    EXPECT_EQ(answer.size(), size);
    EXPECT_EQ(answer.bytes()[size - 1], static_cast<std::byte>(i));
    place.note(size);
  }
  co_await peer.close();
}

std::uint64_t talk(std::uint64_t seed) {
  world place(seed, {});
  {
    net::device device = open_device(place);
    executor home(place.options(true));
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:7471");
      co_await when_all(echo(listener), ask(device, place, 20));
    };
    home.run(body());
  }
  EXPECT_EQ(place.leaks(), "");
  return place.trace();
}

TEST(simulated_world, two_ends_talk_in_virtual_time) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) static_cast<void>(talk(seed));
}

TEST(simulated_world, a_seed_repeats_its_run_bit_for_bit) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) EXPECT_EQ(talk(seed), talk(seed));
  EXPECT_NE(talk(1), talk(2));
}

// Whatever is cut off: the death is noticed after dead_peer_after, and neither sooner nor never.
TEST(simulated_world, a_link_that_is_cut_in_silence_is_noticed_in_time) {
  world place(7, {});
  {
    net::device device = open_device(place);
    executor home(place.options(true));
    place.at(1s, [&] { place.cut(20'000); });
    const auto wait_for_death = [](net::connection& peer) -> task<> {
      try {
        static_cast<void>(co_await peer.recv());
        ADD_FAILURE() << "the peer has closed";
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::peer_vanished);
      }
    };
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:7471");
      const auto serve = [&]() -> task<> {
        auto request = co_await listener.next();
        net::connection peer = co_await request->accept();
        co_await wait_for_death(peer);
      };
      const auto call = [&]() -> task<> {
        net::connection peer = co_await device.connect("127.0.0.1:7471", {.source = "127.0.0.1:20000"});
        co_await wait_for_death(peer);
      };
      co_await when_all(serve(), call());
    };
    home.run(body());
    EXPECT_GT(place.elapsed(), 10s);
    EXPECT_LT(place.elapsed(), 12s);
  }
  EXPECT_EQ(place.leaks(), "");
}

// Sends to a peer that takes nothing until `look_away` has passed, which closes its window.
struct busy_receiver {
  static constexpr std::size_t messages = 100;
  std::size_t received = 0;
  std::optional<error> sender_failed;
  time_point ended{};

  void run(world& place, duration look_away) {
    net::device device = open_device(place);
    executor home(place.options(true));
    const net::connection_options plain{
        .receive_depth = 4, .profile = net::profile::interop, .source = "127.0.0.1:20000"};
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:7471");
      const auto serve = [&]() -> task<> {
        auto request = co_await listener.next();
        net::connection peer = co_await request->accept({.receive_depth = 4, .profile = plain.profile});
        co_await sleep_for(look_away);
        try {
          while (co_await peer.recv()) ++received;
        } catch (const error&) {
        }
      };
      const auto call = [&]() -> task<> {
        net::connection peer = co_await device.connect("127.0.0.1:7471", plain);
        try {
          for (std::size_t i = 0; i < messages; ++i) co_await peer.send(co_await device.pool().allocate(4096));
          co_await peer.close();
        } catch (const error& why) {
          sender_failed = why;
        }
        ended = home.now();
      };
      co_await when_all(serve(), call());
    };
    home.run(body());
  }
};

TEST(simulated_world, a_peer_that_does_not_read_for_minutes_slows_its_sender_and_nothing_else) {
  world place(7, {});
  busy_receiver both;
  both.run(place, 10min);
  EXPECT_FALSE(both.sender_failed) << both.sender_failed->what();
  EXPECT_EQ(both.received, busy_receiver::messages);
  EXPECT_EQ(place.leaks(), "");
}

TEST(simulated_world, a_peer_that_does_not_read_and_is_cut_off_is_noticed_in_time) {
  world place(7, {});
  busy_receiver both;
  place.at(1min, [&] { place.cut(20'000); });
  both.run(place, 10min);
  ASSERT_TRUE(both.sender_failed);
  EXPECT_EQ(both.sender_failed->code(), errc::peer_vanished) << both.sender_failed->what();
  EXPECT_GE(both.ended, time_point() + 1min + 10s);
  EXPECT_LE(both.ended, time_point() + 1min + 30s);
  EXPECT_EQ(place.leaks(), "");
}

// What excuses a failure is what has been done, and not what was going to be.
TEST(simulated_world, a_fault_that_finds_nobody_disturbs_nobody) {
  world place(7, {});
  {
    net::device device = open_device(place);
    executor home(place.options(true));
    const auto harm = [&] {
      place.reset(20'000);
      place.cut(20'000);
      place.stall(20'000, 1ms);
      place.damage(20'000);
      place.fail_send(20'000, true, ENOBUFS);
    };
    const auto body = [&]() -> task<> {
      harm();
      net::listener listener = co_await device.listen("127.0.0.1:7471");
      const auto call = [&]() -> task<> {
        net::connection peer = co_await device.connect("127.0.0.1:7471", {.source = "127.0.0.1:20000"});
        co_await peer.close();
        co_await sleep_for(1s);
        harm();
        co_await sleep_for(1s);
      };
      co_await when_all(echo(listener), call());
    };
    home.run(body());
  }
  EXPECT_FALSE(place.disturbed(20'000));
  EXPECT_EQ(place.faults(), 0U);
}

TEST(simulated_world, a_send_that_shall_fail_disturbs_whoever_sends) {
  world place(7, {});
  {
    net::device device = open_device(place);
    executor home(place.options(true));
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:7471");
      const auto serve = [&]() -> task<> {
        auto request = co_await listener.next();
        net::connection peer = co_await request->accept();
        static_cast<void>(co_await as_result(peer.recv()));
      };
      const auto call = [&]() -> task<> {
        net::connection peer = co_await device.connect("127.0.0.1:7471", {.source = "127.0.0.1:20000"});
        place.fail_send(20'000, true, ENOBUFS);
        EXPECT_FALSE(place.disturbed(20'000));
        mr::buffer word = co_await device.pool().allocate(4);
        const auto sent = co_await as_result(peer.send(std::move(word)));
        EXPECT_TRUE(place.disturbed(20'000));
        EXPECT_EQ(place.faults(), 1U);
      };
      co_await when_all(serve(), call());
    };
    home.run(body());
  }
  EXPECT_FALSE(place.disturbed(20'001));
}

}  // namespace
}  // namespace weft::sim

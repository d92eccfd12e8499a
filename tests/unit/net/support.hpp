// SPDX-License-Identifier: Apache-2.0
// What the tests of net share: a device, an executor, and peers made by hand.
#pragma once

#include <weft/weft.hpp>

#include <deque>

#include "kit/clock.hpp"
#include "kit/descriptors.hpp"
#include "kit/loopback.hpp"
#include "kit/with_calls.hpp"
#include "net/raw_peer.hpp"
#include "runtime/support.hpp"

namespace weft::test {

using namespace std::chrono_literals;

/// The two ends of a connection.
struct connection_ends {
  connection_ends(net::connection connected, net::connection accepted) noexcept
      : client(std::move(connected)), server(std::move(accepted)) {}

  net::connection client;
  net::connection server;
};
/// Of a device to one that listens meanwhile, by default at an address of this program's own: the names of shared
/// memory hold no port of TCP, so that another program may listen in memory under the number that a network has chosen
/// here.
inline task<connection_ends> connected(net::device& from, net::device& to, std::string where = own_loopback() + ":0",
                                       net::connection_options how = {}) {
  auto listener = co_await to.listen(std::move(where));
  auto both = co_await when_all(from.connect(std::string(listener.address()), how), listener.accept(how));
  auto& accepted = std::get<1>(both);
  co_return connection_ends(std::move(std::get<0>(both)), std::move(*accepted));
}

/// The next Terminate that the peer is sent has this cause.
inline task<> expect_terminate(raw_peer& raw, net::iwarp::terminate_code cause) {
  const auto said = co_await raw.receive_terminate();
  EXPECT_TRUE(said && *said == cause) << (said ? describe(*said).c_str() : "no Terminate");
}

/// How a peer made by hand connects, and with what ours accepts it.
struct raw_client {
  bytes greeting = greeting_bytes();
  bool crc = false;
  int segment_bytes = 0;
  net::connection_options ours{};
};

/// TEST_F of a net_test whose body is a coroutine with a peer made by hand, `raw`, that has connected to one of ours,
/// `peer`. What follows the name goes to against_raw_client().
#define TEST_F_AGAINST_RAW(fixture, name, ...)                                                                    \
  TEST_F_SCRIPT(fixture, name,                                                                                    \
                ([[maybe_unused]] ::weft::test::raw_peer & raw, [[maybe_unused]] ::weft::net::connection & peer), \
                against_raw_client(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

class net_test : public testing::Test {
 protected:
  /// With system calls that outlive it.
  explicit net_test(system_calls& calls = system_calls::kernel()) : home_({.clock = &clock_, .system_calls = &calls}) {
    open_device({});
  }

  template <class Script>
  void run(Script script) {
    home_.run(with_timeout(1000s, script()));
  }

  void jump(duration time) noexcept { clock_.advance(time); }
  /// Beyond every timeout of a set-up.
  void let_set_ups_time_out() noexcept { clock_.advance(net::connection_options().set_up_timeout + 1s); }

  /// In place of the one before, which stays beside it.
  net::device& open_device(const net::device_options& options) {
    return devices_.emplace_back(net::device::open("iwarp", options));
  }
  /// Keeps another one beside device(), until after the executor's end.
  net::device& keep(net::device made) { return devices_.emplace_front(std::move(made)); }
  [[nodiscard]] net::device& device() noexcept { return devices_.back(); }
  [[nodiscard]] mr::pool& pool() noexcept { return device().pool(); }
  [[nodiscard]] task<net::listener> listen(net::listener_options how = {}) {
    return device().listen(own_loopback() + ":0", how);
  }

  /// Runs `script(raw, connection)`: a peer made by hand has connected to one of ours.
  void against_raw_client(const test_script<raw_peer&, net::connection&>& script, const raw_client& how = {}) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      raw_peer raw = raw_peer::connect(listener.address(), how.segment_bytes);
      auto both = co_await when_all(raw.set_up(how.greeting, how.crc), accept(listener, how.ours));
      listener.close();
      co_await script(raw, std::get<1>(both));
    });
  }

  /// What connect() to a server says whose end of the conversation is `script(raw)`.
  template <class Script>
  task<std::optional<error>> connect_to(Script& script) {
    raw_listener listener;
    const auto serve = [&]() -> task<> {
      raw_peer raw = co_await listener.accept();
      co_await script(raw);
    };
    auto both = co_await when_all(failure_of(device().connect(listener.address())), serve());
    co_return std::get<0>(both);
  }
  /// The same to one that answers so, and waits for the end.
  task<std::optional<error>> connect_to(bytes reply) {
    const auto serve = [&](raw_peer& raw) -> task<> {
      static_cast<void>(co_await raw.answer(reply));
      static_cast<void>(co_await raw.receive_rest());
    };
    co_return co_await connect_to(serve);
  }

  /// A peer of ours gets through: whatever others did has not hurt the listener.
  task<> expect_service(net::listener& listener) {
    auto both = co_await when_all(device().connect(std::string(listener.address())), accept(listener));
    auto payload = co_await pool().allocate(10);
    co_await std::get<0>(both).send(std::move(payload));
    const auto message = co_await std::get<1>(both).recv_or_throw();
    EXPECT_EQ(message.size(), 10u);
  }

  task<net::connection> accept(net::listener& listener, net::connection_options options = {}) {
    auto request = co_await listener.next();
    if (!request) throw error(errc::closed, "the listener");
    co_return co_await request->accept(options);
  }

 private:
  manual_clock clock_{manual_clock::between_moves::goes};
  std::deque<net::device> devices_;
  executor home_;
};

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// What the tests of net share: a device, an executor, and peers made by hand.
#pragma once

#include <weft/weft.hpp>

#include <deque>

#include "kit/clock.hpp"
#include "kit/descriptors.hpp"
#include "kit/expect_failure.hpp"
#include "kit/loopback.hpp"
#include "kit/scripted_test.hpp"
#include "kit/settle.hpp"
#include "net/raw_peer.hpp"
#include "runtime/support.hpp"

namespace weft::test {

using namespace std::chrono_literals;

/// TEST_F of a net_test whose body is a coroutine with a peer made by hand, `raw`, that has connected to one of ours,
/// `peer`. What follows the name goes to against_raw_client().
#define TEST_F_AGAINST_RAW(fixture, name, ...)                                                                    \
  TEST_F_SCRIPT(fixture, name,                                                                                    \
                ([[maybe_unused]] ::weft::test::raw_peer & raw, [[maybe_unused]] ::weft::net::connection & peer), \
                against_raw_client(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

class net_test : public testing::Test {
 protected:
  /// With system calls that outlive it.
  explicit net_test(system_calls& calls = system_calls::kernel()) : home_(on(clock_, calls)) { open_device({}); }

  template <class Script>
  void run(Script script) {
    home_.run(with_timeout(1000s, script()));
  }

  void jump(duration time) noexcept { clock_.advance(time); }
  /// Beyond every timeout of a set-up.
  void let_set_ups_time_out() noexcept { clock_.advance(net::connection_options().set_up_timeout + 1s); }

  /// In place of the one before, which stays beside it.
  void open_device(const net::device_options& options) { devices_.push_back(net::device::open("iwarp", options)); }
  [[nodiscard]] net::device& device() noexcept { return devices_.back(); }
  [[nodiscard]] mr::pool& pool() noexcept { return device().pool(); }
  [[nodiscard]] task<net::listener> listen(net::listener_options how = {}) {
    return device().listen(own_loopback() + ":0", how);
  }

  /// Runs `script(raw, connection)`: a peer made by hand has connected to one of ours.
  template <class Script>
  void against_raw_client(Script script, bool crc = false, const bytes& greeting = greeting_bytes(),
                          const net::connection_options& options = {}) {
    const auto body = [&]() -> task<> {
      auto listener = co_await listen();
      raw_peer raw = raw_peer::connect(listener.address());
      auto both = co_await when_all(raw.set_up(greeting, crc), accept(listener, options));
      listener.close();
      co_await script(raw, std::get<1>(both));
    };
    run(body);
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
  static executor_options on(clock& time, system_calls& calls) noexcept {
    executor_options chosen{.clock = &time, .system_calls = &calls};
    return chosen;
  }

  manual_clock clock_{manual_clock::between_moves::goes};
  std::deque<net::device> devices_;
  executor home_;
};

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection of several rails, in one process.
#pragma once

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/weft.hpp>

#include "breakable.hpp"
#include "kit/buffers.hpp"
#include "kit/loopback.hpp"
#include "kit/scripted_test.hpp"

namespace weft::test {

/// Whether it is a message of the rails' own, and one of that kind.
inline bool is_control(const net::work_request& work) { return net::rails::control::is_one(work.own); }
inline bool says(const net::work_request& work, net::rails::control_kind what) {
  return is_control(work) && work.own.front() == static_cast<std::byte>(what);
}

struct ends {
  net::connection& client;
  net::connection& server;
};

inline task<net::connection> accept_one(net::listener& from, net::connection_options how) {
  auto made = co_await from.accept(how);
  co_return std::move(made).value();
}

/// Runs `script(ends)` on a connection over one listener, which stays for as long as they do.
inline task<> with_ends(net::device& client_device, net::device& server_device, std::string address,
                        net::connection_options how, test_script<ends> script) {
  net::listener listener = co_await server_device.listen(address);
  auto [client, server] =
      co_await when_all(client_device.connect(std::string(listener.address()), how), accept_one(listener, how));
  co_await script(ends{client, server});
}

/// TEST_F whose body is a coroutine with both ends. What follows the name goes to between_ends() of the fixture.
#define TEST_F_BETWEEN_ENDS(fixture, name, ...) \
  TEST_F_SCRIPT(fixture, name, (::weft::test::ends both), between_ends(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

/// Where two rails listen.
inline std::string two_ports() { return own_loopback() + ":0+" + own_loopback() + ":0"; }

using two_cables = std::array<std::shared_ptr<cable>, 2>;

/// A device with a rail of iWARP over each cable.
inline net::device open_rails(const two_cables& cables) {
  const auto domain = std::make_shared<net::software::domain>(system_calls::kernel(), "iwarp");
  std::vector<std::unique_ptr<net::transport>> ways;
  for (const auto& each : cables) {
    ways.push_back(std::make_unique<breakable_transport>("iwarp:" + std::to_string(ways.size()), each,
                                                         net::iwarp::open_transport({.checksum = false}, domain)));
  }
  return net::device::open(net::rails::open_transport(std::move(ways)), {});
}

inline task<net::exposure> expose_zeros(mr::pool& pool, net::connection& at, std::size_t bytes) {
  auto memory = co_await pool.allocate(bytes, mr::budget::receive);
  std::ranges::fill(memory.bytes(), std::byte{0});
  co_return co_await at.expose(std::move(memory), open_wide);
}

/// Connections of two rails of iWARP, over cables that a test breaks.
class two_rails : public testing::Test {
 protected:
  // Whichever cable is asked for when a connection is made carries its messages: the first.
  [[nodiscard]] cable& messages() noexcept { return *cables_[0]; }
  [[nodiscard]] cable& other() noexcept { return *cables_[1]; }
  [[nodiscard]] mr::pool& pool() noexcept { return device_.pool(); }

  task<mr::buffer> filled(std::size_t bytes, unsigned seed) { return test::filled(pool(), bytes, seed); }
  task<net::exposure> expose_zeros(net::connection& at, std::size_t bytes) {
    return test::expose_zeros(pool(), at, bytes);
  }
  // Moves data until the cable has carried some of it: then its rail is there at both ends.
  task<> until_spread_over(net::connection& client, const net::exposure& target, cable& over) {
    auto source = co_await filled(mebibyte, 0);
    for (const std::uint64_t before = over.moved; over.moved == before;) {
      co_await client.write(source, target.remote().slice(0, mebibyte));
    }
  }
  // Memory of the server, once the second rail has carried some of it.
  task<net::exposure> spread_target(ends both, std::size_t bytes) {
    auto made = co_await expose_zeros(both.server, bytes);
    co_await until_spread_over(both.client, made, other());
    co_return made;
  }
  // Nobody connects over either cable until it is mended, and what they have is cut.
  void pull_both() {
    for (const auto& each : cables_) each->is_down = true;
    for (const auto& each : cables_) each->cut();
  }
  void mend_both() {
    for (const auto& each : cables_) each->is_down = false;
  }

  const two_cables cables_{std::make_shared<cable>(), std::make_shared<cable>()};
  net::device device_ = open_rails(cables_);
};

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection of several rails, in one process.
#pragma once

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/weft.hpp>

#include "breakable.hpp"
#include "kit/buffers.hpp"
#include "kit/loopback.hpp"
#include "kit/scripted_test.hpp"
#include "kit/standard.hpp"

namespace weft::test {

struct ends {
  net::connection& client;
  net::connection& server;
};

inline task<net::connection> accept_one(net::listener& from, net::connection_options how) {
  auto made = co_await from.accept(how);
  co_return std::move(made).value();
}

/// Runs `script(ends)` on a connection over one listener, which stays for as long as they do.
template <class Script>
task<> with_ends(net::device& client_device, net::device& server_device, std::string address,
                 net::connection_options how, Script& script) {
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

}  // namespace weft::test

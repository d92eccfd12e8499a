// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include "kit/test.hpp"
#include "world.hpp"

namespace weft::sim {

/// A world, and a device in it two ends of which meet. All is given back in the end.
class two_ends {
 public:
  using side = std::function<task<>(net::connection&)>;

  two_ends(std::uint64_t seed, std::unique_ptr<net::transport> (*open)(system_calls&)) : place(seed, {}) {
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place}};
    device.emplace(net::device::open(open(place), options));
  }
  ~two_ends() { end(); }
  void end() {
    device.reset();
    EXPECT_EQ(place.leaks(), "");
  }

  /// Has the two do that. One accepts with these options, and the other one connects with those.
  void run(const side& server, const side& client, const net::connection_options& accepts = {},
           const net::connection_options& connects = {}) {
    executor home(place.options(true));
    const auto serve = [&](net::listener& listener) -> task<> {
      auto request = co_await listener.next();
      net::connection peer = co_await request->accept(accepts);
      co_await server(peer);
    };
    const auto call = [&]() -> task<> {
      net::connection peer = co_await device->connect("127.0.0.1:7471", connects);
      co_await client(peer);
    };
    const auto both = [&]() -> task<> {
      net::listener listener = co_await device->listen("127.0.0.1:7471");
      co_await when_all(serve(listener), call());
    };
    home.run(both());
  }

  world place;
  std::optional<net::device> device;
};

}  // namespace weft::sim

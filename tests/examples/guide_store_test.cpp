// SPDX-License-Identifier: Apache-2.0
// The store of docs/guide on the simulated network, as docs/guide/testing.md shows it.
#include <weft/net/iwarp/transport.hpp>
#include <weft/weft.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include <store.hpp>
#include <world.hpp>

namespace {

using namespace weft;
using namespace std::chrono_literals;

net::device open_device(sim::world& place) {
  net::device_options options;
  options.pool.huge_pages = false;
  options.pool.system_calls = &place;
  return net::device::open(net::iwarp::open_transport({}, place), options);
}

task<> answer(net::connection peer, const mr::region& memory, store::table& table) {
  const auto where = memory.remote().pack();
  co_await peer.send_bytes(where);
  while (auto message = co_await peer.recv()) {
    const auto said = store::parse_put(message->text());
    if (!said) throw error(errc::malformed, "a request that is not valid");
    table.put(said->key, said->value);
    co_await peer.send_bytes("");
  }
}

task<> put(net::connection& peer, std::string value) {
  const std::string request = store::pack_put("colour", value);
  co_await peer.send_bytes(request);
  co_await peer.recv_or_throw();
}

task<std::string> get(net::connection& peer, net::device& device, mr::remote_region table) {
  auto room = co_await device.allocate(sizeof(store::slot));
  co_await peer.read(room, store::slot_of(table, "colour"));
  store::slot read;
  std::memcpy(&read, room.data(), sizeof read);
  std::string value;
  if (store::find_in(read, "colour", value) != store::outcome::found) value = "(not found)";
  co_return value;
}

// Puts and gets fifty values over one connection. Yields whether it came to the end.
task<bool> use(net::device& device, std::uint16_t port) try {
  const std::string source = "127.0.0.1:" + std::to_string(port);
  auto peer = co_await device.connect("127.0.0.1:7471", {.source = source});
  const auto hello = co_await peer.recv_or_throw();
  const auto table = mr::remote_region::unpack(hello.bytes());
  for (int i = 0; i < 50; ++i) {
    co_await put(peer, std::to_string(i));
    EXPECT_EQ(co_await get(peer, device, table), std::to_string(i));
  }
  co_await peer.close();
  co_return true;
} catch (const error&) {
  co_return false;  // the connection is over
}

// One client after another, until one comes to the end. The connections of the first few are harmed.
void use_store(std::uint64_t seed) {
  sim::world place(seed, {});
  {
    auto device = open_device(place);
    executor home(place.options(true));
    for (std::uint16_t i = 0; i < 3; ++i) {
      place.at(1ms * (i + 1), [&place, i] { place.reset(static_cast<std::uint16_t>(20'000 + i)); });
      place.at(4ms, [&place, i] { place.cut(static_cast<std::uint16_t>(20'000 + i)); });
    }
    const auto body = [&]() -> task<> {
      std::vector<store::slot> slots(16);
      auto memory = co_await device.register_memory(std::move(slots), {.usage = mr::usage::read_src});
      store::table table(memory.bytes());
      auto listener = co_await device.listen("127.0.0.1:7471");
      const auto ignore = [](const report&) noexcept {};  // the server's ends of connections that were harmed
      const auto serve = [&](scope& peers) -> task<> {
        while (auto peer = co_await listener.accept()) peers.spawn(answer(std::move(*peer), memory, table));
      };
      const auto call = [&]() -> task<> {
        for (std::uint16_t port = 20'000; !co_await use(device, port); ++port) EXPECT_LT(port, 20'010);
      };
      auto server = with_scope(ignore, serve);
      auto client = call();
      co_await when_any(std::move(server), std::move(client));
    };
    home.run(body());
  }
  EXPECT_EQ(place.leaks(), "");
}

TEST(guide_store, finds_what_was_put_whatever_becomes_of_connections) {
  for (std::uint64_t seed = 0; seed < 15; ++seed) use_store(seed);
}

}  // namespace

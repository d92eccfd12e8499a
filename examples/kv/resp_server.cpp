// SPDX-License-Identifier: Apache-2.0
#include <weft/net/stream_listener.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <kv/resp_conversation.hpp>
#include <kv/resp_server.hpp>
#include <kv/valkey.hpp>

namespace kv {

using namespace weft;

namespace {

// As Valkey's server has it.
constexpr auto keep_alive_every = std::chrono::seconds(3);

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

// One of the clients that there may be at a time, from the moment it has come.
class place {
 public:
  explicit place(std::size_t& taken) noexcept : taken_(&taken) { ++taken; }
  place(place&& other) noexcept : taken_(std::exchange(other.taken_, nullptr)) {}
  place& operator=(place&&) = delete;
  ~place() { give_back(); }

  void give_back() noexcept {
    if (taken_ != nullptr) --*std::exchange(taken_, nullptr);
  }

 private:
  std::size_t* taken_;
};

// ---- over TCP ----

// The place is there again before the client sees the end, after which it may come again.
task<> serve_tcp_peer(net::stream peer, resp_service& service, place taken) {
  resp_conversation<net::stream> talk(peer, service);
  co_await talk.run();
  taken.give_back();
  co_await peer.close();
  talk.check();
}

task<> turn_away(net::stream peer) {
  constexpr std::string_view why = "-ERR max number of clients reached\r\n";
  co_await peer.write(bytes_of(why));
  co_await peer.close();
}

task<> serve_tcp(net::device& device, resp_service& service, std::string address, std::size_t max_connections) {
  constexpr std::string_view scheme = "tcp://";
  address.insert(0, scheme);
  auto listener = co_await net::stream_listener::listen(device, address);
  fmt::print("RESP on {} over TCP\n", listener.address().substr(scheme.size()));
  std::fflush(stdout);
  std::size_t connections = 0;
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) {
      if (connections == max_connections) {
        peers.spawn(turn_away(std::move(*peer)));
      } else {
        peers.spawn(serve_tcp_peer(std::move(*peer), service, place(connections)));
      }
    }
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

// ---- Valkey over RDMA ----

task<> keep_alive(valkey_stream& peer) {
  for (;;) {
    co_await sleep_for(keep_alive_every);
    co_await peer.keep_alive();
  }
}

task<> serve_valkey_peer(net::device& device, net::connection_request request, resp_service& service) {
  auto peer = co_await valkey_stream::accept(device, std::move(request));
  resp_conversation<valkey_stream> talk(peer, service);
  auto talking = talk.run();
  auto living = keep_alive(peer);
  co_await when_any(std::move(talking), std::move(living));
  co_await peer.close();
  talk.check();
}

task<> serve_valkey(net::device& device, resp_service& service, std::string address, std::size_t max_connections) {
  const net::listener_options narrow{.max_connections = max_connections};
  auto listener = co_await device.listen(address, narrow);
  fmt::print("Valkey over RDMA on {} over {}\n", listener.address(), device.name());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto request = co_await listener.next()) {
      peers.spawn(serve_valkey_peer(device, std::move(*request), service));
    }
  };
  co_await with_scope(on_failure::report, accept_all);
}

}  // namespace

task<> serve_resp(net::device& device, table& data, resp_server_options options) {
  resp_service service(data);
  std::vector<task<>> all;
  if (options.tcp_address) all.push_back(serve_tcp(device, service, *options.tcp_address, options.max_connections));
  if (options.valkey_address) {
    all.push_back(serve_valkey(device, service, *options.valkey_address, options.max_connections));
  }
  co_await when_all(std::move(all));
}

}  // namespace kv

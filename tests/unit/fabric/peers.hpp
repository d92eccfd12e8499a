// SPDX-License-Identifier: Apache-2.0
// Two ends of a connection over libfabric, or one and a peer that says over the socket what it likes.
#pragma once

#include <weft/net/fabric/hello.hpp>
#include <weft/net/fabric/transport.hpp>
#include <weft/weft.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include "kit/expect_failure.hpp"
#include "shim_library.hpp"

namespace weft::test {

inline constexpr const char* provider = "sockets";
inline constexpr auto patience = std::chrono::seconds(30);

/// Receives that do not divide 2^32, at which the numbers of messages wrap; and no close that gives up before the test.
[[nodiscard]] net::connection_options few_receives();

[[nodiscard]] task<net::connection> accept_one(net::listener& from);

/// A connection of a device with itself.
template <class Script>
task<> between(net::device& device, Script& script) {
  net::listener listener = co_await device.listen("127.0.0.1:0");
  auto [client, server] =
      co_await when_all(device.connect(std::string(listener.address()), few_receives()), accept_one(listener));
  co_await script(client, server, device.pool());
  co_await when_all(client.close(), server.close());
}

/// Runs the task that `body()` is on an executor of its own.
template <class Body>
void run(Body body, clock& time = clock::steady()) {
  executor home({.clock = &time});
  home.run(with_timeout(patience, body()));
}

/// Both ends on one device of that library, whose rules have to be kept.
template <class Script>
void with_peers(shim_library& library, Script script, clock& time = clock::steady()) {
  {
    net::device device = net::device::open(net::fabric::open_transport(provider, library));
    run([&] { return between(device, script); }, time);
  }
  EXPECT_EQ(library.broken_rules(), std::vector<std::string>());
}

/// One message from one end to the other, as it was.
[[nodiscard]] task<> exchange(net::connection& from, net::connection& to, mr::pool& pool);

/// Waits for the end of a connection, which has to have that cause.
[[nodiscard]] task<> expect_end(net::connection& of, std::error_code cause);

/// Registers so many regions that any peer with their key may write to, and then lets them go.
[[nodiscard]] task<> open_and_release_regions(net::device& device, std::size_t count);

[[nodiscard]] inline descriptor tcp_socket() {
  return {::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), system_calls::kernel()};
}
[[nodiscard]] sockaddr_in loopback_at(std::uint32_t host, std::uint16_t port);

void send_frame(const descriptor& socket, const net::fabric::frame& what);

/// Connects a socket, and says hello for an endpoint that is at this address. Yields the kind of the answer.
[[nodiscard]] net::fabric::frame_kind say_hello(const descriptor& socket, std::uint16_t port, std::string_view of,
                                                const sockaddr_in& endpoint);

/// A peer that has set a connection up, and says over the socket what it likes. For a thread of its own.
class raw_peer : private immovable {
 public:
  /// Connects, and calls `answered` with its own address before it says that it is ready.
  raw_peer(std::uint16_t port, std::string_view of, const std::function<void(const sockaddr_in&)>& answered = {});

  void say(const net::fabric::control_record& what) const;
  /// Empty once there is no more.
  [[nodiscard]] std::optional<net::fabric::control_record> hear() const;
  /// The next record of that kind.
  [[nodiscard]] std::optional<net::fabric::control_record> hear(net::fabric::control_record::kind_t kind) const;
  void wait_for_the_end() const;

 private:
  descriptor socket_ = tcp_socket();
};
inline void stay_silent(const raw_peer& self) { self.wait_for_the_end(); }

[[nodiscard]] std::uint16_t port_of(std::string_view address);

/// One end of a connection on that device, at the other of which `peer(port)` runs on a thread.
template <class Peer, class Script>
void with_thread(net::device& device, Peer peer, Script script, clock& time = clock::steady()) {
  std::jthread other;
  const auto body = [&]() -> task<> {
    net::listener listener = co_await device.listen("127.0.0.1:0");
    const std::uint16_t port = port_of(listener.address());
    other = std::jthread([port, &peer] { peer(port); });
    net::connection server = co_await accept_one(listener);
    co_await script(server, device);
  };
  run(body, time);
}

/// The same with a raw_peer.
template <class Peer, class Script>
void with_raw_peer(net::device& device, const char* of, Peer peer, Script script, clock& time = clock::steady()) {
  with_thread(
      device, [&](std::uint16_t port) { peer(raw_peer(port, of)); }, std::move(script), time);
}
template <class Peer, class Script>
void with_raw_peer(const char* of, Peer peer, Script script, clock& time = clock::steady()) {
  net::device device = net::device::open("fabric:" + std::string(of));
  with_raw_peer(device, of, std::move(peer), std::move(script), time);
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// A transport of one's own, opened by its name: both ends of a connection over it, in this process.
#include <weft/net/add_transport.hpp>
#include <weft/weft.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "fabric.hpp"

using namespace weft;

task<> serve(net::listener& listener) {
  auto peer = co_await listener.accept();
  while (auto message = co_await peer->recv()) co_await peer->send(std::move(message->payload));
}

task<> say(net::device& device, std::string address, std::string text) {
  auto peer = co_await device.connect(address);
  co_await peer.send_bytes(text);
  const auto answer = co_await peer.recv_or_throw();
  std::printf("%s came back over %s\n", std::string(answer.text()).c_str(), std::string(peer.fabric()).c_str());
  co_await peer.close();
}

task<> both_ends(net::device& device) {
  auto listener = co_await device.listen("127.0.0.1:0");
  co_await when_all(serve(listener), say(device, std::string(listener.address()), "hello"));
}

int main() try {
  net::add_transport("toy", [](std::string_view) { return toy::open_transport(); });
  auto device = net::device::open("toy");
  executor ex;
  ex.run(both_ends(device));
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "toy: %s\n", failure.what());
  return 1;
}

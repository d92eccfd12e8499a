// SPDX-License-Identifier: Apache-2.0
// echo_weft: an echo server over TCP as a user of weft writes it. Prints its port.
#include <weft/weft.hpp>

#include <cstdio>

#include "kit/standard.hpp"

using namespace weft;

namespace {

task<> serve(net::stream peer) {
  std::array<std::byte, 4096> room;
  while (const std::size_t got = co_await peer.read_some(std::span(room))) {
    co_await peer.write(std::span(room).first(got));
  }
  co_await peer.close();
}

task<> server(net::device& device) {
  auto listener = co_await net::stream_listener::listen(device, "tcp://127.0.0.1:0");
  const std::string address(listener.address());
  std::printf("%s\n", address.c_str() + address.rfind(':') + 1);
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(serve(std::move(*peer)));
  };
  co_await with_scope(on_failure::report, accept_all);
}

}  // namespace

int main() try {
  auto device = net::device::open("iwarp");
  executor ex;
  ex.run(server(device));
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "echo_weft: %s\n", failure.what());
  return 1;
}

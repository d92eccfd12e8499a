// SPDX-License-Identifier: Apache-2.0
// Sends back what it is sent: `echo serve`, and `echo say HOST:PORT TEXT...` in another terminal.
#include <weft/weft.hpp>

#include <cstdio>
#include <string>

using namespace weft;

task<> serve(net::connection peer) {
  while (auto message = co_await peer.recv()) {       // empty: the peer has closed
    co_await peer.send(std::move(message->payload));  // the payload stays alive until the transport is done with it
  }
}

task<> server(net::device& device, std::string address) {
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(serve(std::move(*peer)));
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

task<> client(net::device& device, std::string address, std::string text) {
  auto peer = co_await device.connect(address);
  co_await peer.send_bytes(text);
  const auto answer = co_await peer.recv_or_throw();
  std::printf("%s\n", std::string(answer.text()).c_str());
  co_await peer.close();
}

std::string join(char** first, char** last) {
  std::string text = *first;
  while (++first != last) text.append(" ").append(*first);
  return text;
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = net::device::open("auto");  // shared memory, and an RDMA NIC where there is one, else iWARP
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(server(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "say" && argc >= 4) {
    ex.run(client(device, argv[2], join(argv + 3, argv + argc)));
  } else {
    std::fputs("usage: echo serve [HOST:PORT]\n       echo say HOST:PORT TEXT...\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "echo: %s\n", failure.what());
  return 1;
}

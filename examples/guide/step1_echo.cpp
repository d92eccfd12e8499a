// SPDX-License-Identifier: Apache-2.0
// Step 1 of docs/guide. Sends back what it is sent, to one peer after another:
// `step1_echo serve [HOST:PORT]`, and `step1_echo say HOST:PORT TEXT` in another terminal.
#include <weft/weft.hpp>

#include <cstdio>
#include <string>

using namespace weft;

task<> answer(net::connection peer) {
  while (auto message = co_await peer.recv()) {  // empty once the peer has closed
    std::printf("%zu bytes\n", message->size());
    co_await peer.send(std::move(message->payload));
  }
  std::puts("the peer has closed");
}

task<> serve(net::device& device, std::string address) {
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  while (auto peer = co_await listener.accept()) {
    std::printf("a peer over %s\n", std::string(peer->fabric()).c_str());
    co_await answer(std::move(*peer));
  }
}

task<> say(net::device& device, std::string address, std::string text) {
  auto peer = co_await device.connect(address);
  co_await peer.send_bytes(text);
  const auto reply = co_await peer.recv_or_throw();
  std::printf("%s\n", std::string(reply.text()).c_str());
  co_await peer.close();
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line at a time, also into a file
  auto device = net::device::open("auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "say" && argc == 4) {
    ex.run(say(device, argv[2], argv[3]));
  } else {
    std::fputs("usage: step1_echo serve [HOST:PORT]\n       step1_echo say HOST:PORT TEXT\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step1_echo: %s\n", failure.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// Step 2 of docs/guide. The echo of step 1 for many peers side by side, which ends in order on Ctrl-C:
// `step2_many serve [HOST:PORT]`, and `step2_many say HOST:PORT TEXT...` in another terminal.
#include <weft/weft.hpp>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

using namespace weft;
using namespace std::chrono_literals;

constexpr auto patience_with_silence = 60s;

// Whoever is stopped, or has waited for too long, leaves the loop. The connection then closes in order.
task<> answer(net::connection peer) {
  for (;;) {
    auto message = co_await as_result(with_timeout(patience_with_silence, peer.recv()));
    if (!message) std::printf("%s: %s\n", std::string(peer.peer()).c_str(), message.error().what());
    if (!message || !*message) co_return;
    co_await peer.send(std::move((*message)->payload));
  }
}

task<> accept_peers(net::listener& listener, scope& peers) {
  while (auto peer = co_await listener.accept()) {
    peers.spawn(answer(std::move(*peer)), "peer");
    std::printf("%zu peers\n", peers.size() - 1);  // this task is in the scope too
  }
}

task<> serve(net::device& device, std::string address) {
  signal_set signals{SIGINT, SIGTERM};
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  auto until_signal = [&](scope& peers) -> task<> {
    peers.spawn(accept_peers(listener, peers), "accept");
    co_await signals.next();
    std::puts("stopping");
    peers.request_stop();
  };
  co_await with_scope(on_failure::report, until_signal, "server");  // returns once the last peer has ended
  std::puts("stopped");
}

task<net::message> ask(net::connection& peer, std::string_view text) {
  co_await peer.send_bytes(text);
  co_return co_await peer.recv_or_throw();
}

task<> say(net::device& device, std::string address, std::vector<std::string> words) {
  auto peer = co_await device.connect(address);
  for (const std::string& word : words) {
    const auto reply = co_await with_timeout(5s, ask(peer, word));
    std::printf("%s\n", std::string(reply.text()).c_str());
  }
  co_await peer.close();
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto device = net::device::open("auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "say" && argc >= 4) {
    ex.run(say(device, argv[2], std::vector<std::string>(argv + 3, argv + argc)));
  } else {
    std::fputs("usage: step2_many serve [HOST:PORT]\n       step2_many say HOST:PORT TEXT...\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step2_many: %s\n", failure.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// Step 5 of docs/guide. A thread of the server writes a value all the time, and a client reads it as often as it can:
// `step5_torn serve [HOST:PORT]`, `step5_torn watch HOST:PORT READS`.
#include <weft/weft.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store.hpp"

using namespace weft;

constexpr std::string_view ticker = "ticker";

// 64 times one letter, then 64 times the next: a value of two letters is torn.
void tick(std::stop_token stop, store::table& table) {
  for (char letter = 'a'; !stop.stop_requested(); letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
    table.put(ticker, std::string(store::longest_value, letter));
  }
}

bool is_mixed(std::string_view value) { return value.find_first_not_of(value[0]) != std::string_view::npos; }

task<> answer(net::connection peer, mr::remote_region table) {
  const auto where = table.pack();
  co_await peer.send_bytes(where);
  co_await peer.ended();
}

task<> serve(net::device& device, std::string address) {
  std::vector<store::slot> memory(1024);
  auto region = co_await device.register_memory(std::move(memory), {.usage = mr::usage::read_src});
  signal_set signals{SIGINT, SIGTERM};  // before the thread, which so does not take them
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  store::table table(region.bytes());
  std::jthread writer(tick, std::ref(table));
  auto accept_peers = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(answer(std::move(*peer), region.remote()));
  };
  auto peers = with_scope(on_failure::report, accept_peers, "peers");
  co_await when_any(std::move(peers), signals.next());
}

task<> watch(net::device& device, std::string address, unsigned reads) {
  auto peer = co_await device.connect(address);
  const auto hello = co_await peer.recv_or_throw();
  const auto where = store::slot_of(mr::remote_region::unpack(hello.bytes()), ticker);
  auto room = co_await device.allocate(sizeof(store::slot));
  unsigned whole = 0;
  unsigned torn = 0;
  unsigned believed = 0;
  for (unsigned i = 0; i < reads; ++i) {
    co_await peer.read(room, where);
    store::slot read;
    std::memcpy(&read, room.data(), sizeof read);
    std::string value;
    const auto outcome = store::find_in(read, ticker, value);
    if (outcome == store::outcome::torn && ++torn == 1) std::printf("torn: %.64s\n", read.value.data());
    if (outcome == store::outcome::found) ++(is_mixed(value) ? believed : whole);
  }
  std::printf("%u reads: %u whole, %u torn and noticed, %u torn and believed\n", reads, whole, torn, believed);
  co_await peer.close();
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* fabric = std::getenv("FABRIC");
  auto device = net::device::open(fabric != nullptr ? fabric : "auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "watch" && argc == 4) {
    ex.run(watch(device, argv[2], static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10))));
  } else {
    std::fputs("usage: step5_torn serve [HOST:PORT]\n       step5_torn watch HOST:PORT READS\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step5_torn: %s\n", failure.what());
  return 1;
}

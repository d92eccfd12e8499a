// SPDX-License-Identifier: Apache-2.0
// Step 7 of docs/guide. The store on several threads, with metrics: `step7_threads serve HOST:PORT THREADS` prints them
// at SIGUSR1; `put HOST:PORT KEY VALUE`; `bench HOST:PORT CONNECTIONS READS` reads one key over so many connections.
#include <weft/weft.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "store.hpp"

using namespace weft;
using namespace std::chrono_literals;

// ---- the server ----

struct shared {
  net::device& device;  // for any thread
  store::table& table;  // likewise: put() takes a lock
  mr::remote_region memory;
};

// Runs on the executor that accepts the request, and the connection belongs to that one.
task<> answer(net::connection_request request, const shared& all) {
  auto peer = co_await request.accept();
  const auto where = all.memory.pack();
  co_await peer.send_bytes(where);
  while (auto message = co_await peer.recv()) {
    const auto said = store::parse_put(message->text());
    if (!said) throw error(errc::malformed, std::string(peer.peer()) + " sent a put that is not valid");
    all.table.put(said->key, said->value);
    co_await peer.send_bytes("");
  }
}

task<> answer_on(executor& where, net::connection_request request, const shared& all) {
  auto peer = answer(std::move(request), all);
  co_await run_on(where, std::move(peer));
}

// Any thread may read these counters.
void print_metrics(const shared& all, const executor_group& group) {
  metrics now;
  net::add_to(now, all.device.statistics(), "store");
  mr::add_to(now, all.device.pool().statistics(), "store");
  add_to(now, group, "worker");
  std::fputs(now.text().c_str(), stdout);
}

task<> serve(net::device& device, std::string address, std::size_t threads) {
  signal_set signals{SIGINT, SIGTERM, SIGUSR1};  // before the threads, which so do not take them
  executor_group group({.size = threads});
  std::vector<store::slot> memory(1024);
  auto region = co_await device.register_memory(std::move(memory), {.usage = mr::usage::read_src});
  store::table table(region.bytes());
  const shared all{.device = device, .table = table, .memory = region.remote()};
  auto listener = co_await device.listen(address);
  std::printf("listening on %s with %zu threads\n", std::string(listener.address()).c_str(), group.size());

  auto accept_peers = [&](scope& peers) -> task<> {
    for (std::size_t next = 0; auto request = co_await listener.next(); ++next) {
      peers.spawn(answer_on(group[next % group.size()], std::move(*request), all), "peer");
    }
  };
  auto watch_signals = [&]() -> task<> {
    while (co_await signals.next() == SIGUSR1) print_metrics(all, group);
  };
  auto peers = with_scope(on_failure::report, accept_peers, "peers");
  auto until_signal = watch_signals();
  co_await when_any(std::move(peers), std::move(until_signal));
}

// ---- the client ----

task<mr::remote_region> receive_table(net::connection& peer) {
  const auto hello = co_await peer.recv_or_throw();
  co_return mr::remote_region::unpack(hello.bytes());
}

task<> put(net::device& device, std::string address, std::string key, std::string value) {
  const std::string text = store::pack_put(key, value);
  auto peer = co_await device.connect(address);
  co_await receive_table(peer);
  co_await peer.send_bytes(text);
  co_await with_timeout(5s, peer.recv_or_throw());
  co_await peer.close();
}

task<> read_often(net::device& device, std::string address, unsigned reads) {
  auto peer = co_await device.connect(address);
  const auto table = co_await receive_table(peer);
  const auto where = store::slot_of(table, "colour");
  auto room = co_await device.allocate(sizeof(store::slot));
  for (unsigned i = 0; i < reads; ++i) co_await peer.read(room, where);
  co_await peer.close();
}

task<> bench(net::device& device, std::string address, unsigned connections, unsigned reads) {
  const auto start = executor::current()->now();
  auto all_at_once = [&](scope& readers) -> task<> {
    for (unsigned i = 0; i < connections; ++i) readers.spawn(read_often(device, address, reads));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, all_at_once);
  const std::chrono::duration<double> took = executor::current()->now() - start;
  std::printf("%u reads over %u connections in %.2f s: %.0f a second\n", connections * reads, connections, took.count(),
              connections * reads / took.count());
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* fabric = std::getenv("FABRIC");
  auto device = net::device::open(fabric != nullptr ? fabric : "auto");
  executor ex;
  const auto number = [&](int which) { return static_cast<unsigned>(std::strtoul(argv[which], nullptr, 10)); };
  if (verb == "serve" && argc == 4) {
    ex.run(serve(device, argv[2], number(3)));
  } else if (verb == "put" && argc == 5) {
    ex.run(put(device, argv[2], argv[3], argv[4]));
  } else if (verb == "bench" && argc == 5) {
    ex.run(bench(device, argv[2], number(3), number(4)));
  } else {
    std::fputs(
        "usage: step7_threads serve HOST:PORT THREADS\n       step7_threads put HOST:PORT KEY VALUE\n"
        "       step7_threads bench HOST:PORT CONNECTIONS READS\n",
        stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step7_threads: %s\n", failure.what());
  return 1;
}

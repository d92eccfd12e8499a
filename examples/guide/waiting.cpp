// SPDX-License-Identifier: Apache-2.0
// For docs/guide/debugging.md: a program that is stuck. Two clients share a mutex, and the one that has it waits for an
// answer to a question that it has not asked. `kill -USR1` has it say so, `kill -INT` ends it and its trace,
// waiting.json.
#include <weft/weft.hpp>

#include <csignal>
#include <cstdio>
#include <thread>

using namespace weft;
using namespace std::chrono_literals;

task<> answer(net::connection peer) {
  while (auto question = co_await peer.recv()) co_await peer.send_bytes("a reply");
}

task<> serve(net::listener& listener, scope& all) {
  while (auto peer = co_await listener.accept()) all.spawn(answer(std::move(*peer)), "peer");
}

task<> ask(net::device& device, std::string address, mutex& turn) {
  auto peer = co_await device.connect(address);
  auto mine = co_await turn.lock();
  co_await peer.recv_or_throw();  // it has forgotten to send its question
}

task<> busy() {
  co_await sleep_for(100ms);
  std::this_thread::sleep_for(30ms);  // blocks the executor
}

task<> run_all(net::device& device) {
  signal_set signals{SIGINT};
  auto listener = co_await device.listen("127.0.0.1:0");
  const std::string address(listener.address());
  mutex turn;
  auto body = [&](scope& all) -> task<> {
    all.spawn(serve(listener, all), "accept");
    all.spawn(ask(device, address, turn), "first client");
    all.spawn(ask(device, address, turn), "second client");
    all.spawn(busy(), "busy");
    co_return;
  };
  auto all = with_scope(on_failure::report, body, "program");
  co_await when_any(std::move(all), signals.next());
}

int main(int argc, char**) try {
  if (argc != 1) {
    std::fputs("usage: waiting\n", stderr);
    return 2;
  }
  auto device = net::device::open("auto");
  executor ex({.stall_limit = 10ms, .dump_on_signal = SIGUSR1});
  trace_file trace("waiting.json");
  ex.run(run_all(device));
  trace.close();
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "waiting: %s\n", failure.what());
  return 1;
}

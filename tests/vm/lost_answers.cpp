// SPDX-License-Identifier: Apache-2.0
// lost_answers: two devices of one machine ask each other over a cable that loses packets, and check what they are
// told.
//
// What writes a word and what reads it, or counts in it, is posted at once: that is how the answers to several are lost
// together. Nothing is posted behind a read that it could find instead: a device may read anew what it has read before.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>

#include "kit/tell.hpp"

using namespace weft;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t word_bytes = 8;
constexpr std::size_t lanes = 16;  // at a time, each with a word of its own
constexpr mr::usage everything = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;

void expect_equal(std::uint64_t told, std::uint64_t expected, const char* what) {
  if (told != expected) throw std::runtime_error(fmt::format("{} has found {} instead of {}", what, told, expected));
}

std::uint64_t word_in(const mr::buffer& memory) {
  std::uint64_t value = 0;
  std::memcpy(&value, memory.data(), sizeof value);
  return value;
}

task<> ask_on_and_on(net::connection& peer, mr::pool& pool, mr::remote_slice word, std::uint64_t turns) {
  auto source = co_await pool.allocate(word_bytes);
  auto before = co_await pool.allocate(word_bytes);
  auto after = co_await pool.allocate(word_bytes);
  for (std::uint64_t turn = 1; turn <= turns; ++turn) {
    const std::uint64_t value = turn << 8;
    std::memcpy(source.data(), &value, sizeof value);
    std::array first{peer.write(source, word), peer.read(before, word)};
    co_await peer.batch(first);
    expect_equal(word_in(before), value, "a read behind a write");
    std::array<net::transfer, 3> second{peer.write(source, word), peer.fetch_add(word, 1), peer.read(after, word)};
    co_await peer.batch(second);
    expect_equal(second[1].value(), value, "fetch_add");
    expect_equal(word_in(after), value + 1, "a read behind fetch_add");
  }
}

net::connection_options options() {
  net::connection_options how;
  how.dead_peer_after = 4s;  // so that packets are sent again soon
  return how;
}

task<> serve(net::listener& from, net::device& device) {
  auto request = co_await from.next();
  auto peer = co_await request->accept(options());
  auto memory = co_await device.pool().allocate(lanes * word_bytes);
  const auto open = co_await peer.expose(std::move(memory), everything);
  co_await test::tell(peer, device.pool(), open.remote());
  const auto nothing = co_await peer.recv();
  if (nothing) throw std::runtime_error("a message that nobody has sent");
}

task<> ask(net::device& device, const std::string& address, std::uint64_t turns) {
  auto peer = co_await device.connect(address, options());
  const auto there = co_await test::hear_region(peer);
  const auto side_by_side = [&](scope& tasks) -> task<> {
    for (std::size_t lane = 0; lane != lanes; ++lane) {
      tasks.spawn(ask_on_and_on(peer, device.pool(), there.slice(lane * word_bytes, word_bytes), turns));
    }
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, side_by_side);
  co_await peer.close();
}

task<> play(net::device& server, net::device& client, const std::string& address, std::uint64_t turns) {
  auto listener = co_await server.listen(address);
  const std::string where(listener.address());
  const auto both = [&](scope& tasks) -> task<> {
    tasks.spawn(serve(listener, server));
    co_await ask(client, where, turns);
  };
  co_await with_scope(on_failure::stop_siblings, both);
}

}  // namespace

int main(int argc, char** argv) {
  std::string server = "iwarp", client = "iwarp", address = "127.0.0.1:0";
  std::uint64_t turns = 50;
  CLI::App app("Whether what a peer is asked is answered right where packets are lost");
  app.add_option("--server-device", server);
  app.add_option("--client-device", client);
  app.add_option("--address", address);
  app.add_option("--turns", turns);
  CLI11_PARSE(app, argc, argv);
  try {
    auto one = net::device::open(server);
    auto other = net::device::open(client);
    executor ex;
    ex.run(play(one, other, address, turns));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "lost_answers: %s\n", failure.what());
    return 1;
  }
}

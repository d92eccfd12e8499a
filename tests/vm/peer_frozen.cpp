// SPDX-License-Identifier: Apache-2.0
// peer_frozen: in two guests, what goes on while guest 2's program is stopped for longer than dead_peer_after, and that
// all does once it continues. For a device: with iWARP in user space the program itself serves its peer.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>

#include "guests.hpp"
#include "kit/tell.hpp"

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

namespace {

constexpr auto dead_peer_after = 2s;
constexpr std::uint16_t receive_depth = 8;
constexpr std::size_t memory_bytes = 64 << 10;
constexpr std::size_t word_bytes = 8;
constexpr std::uint64_t rounds = 20;
constexpr std::uint64_t messages = 30;

const char* const freeze =
    "kill -STOP $PPID; touch /pair/frozen; until test -e /pair/thaw; do sleep 0.02; done; kill -CONT $PPID";

net::connection_options watchful() {
  net::connection_options how{.receive_depth = receive_depth, .dead_peer_after = dead_peer_after};
  return how;
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error("not so: " + std::string(what));
}

/// A number, as a message.
task<> say(net::connection& peer, std::uint64_t number) {
  co_await peer.send_bytes(std::as_bytes(std::span(&number, 1)));
}

task<> work_on_memory(net::device& device, net::connection& peer, mr::remote_region there) {
  const auto block = there.slice(0, memory_bytes - word_bytes);
  const auto word = there.slice(memory_bytes - word_bytes, word_bytes);
  auto source = co_await device.pool().allocate(block.size());
  auto copy = co_await device.pool().allocate(block.size());
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::ranges::fill(source.bytes(), std::byte(round + 1));
    co_await peer.write(source, block);
    co_await peer.flush(block);
    co_await peer.read(copy, block);
    expect(std::ranges::equal(copy.bytes(), source.bytes()), "what was written is read");
    const std::uint64_t before = co_await peer.fetch_add(word, 1);
    expect(before == round, "what was counted is yielded");
  }
}

/// Returns how many messages have gone before one has not.
task<std::uint64_t> send_until_it_waits(net::connection& peer) {
  for (std::uint64_t sent = 0;; ++sent) {
    try {
      co_await with_timeout(2 * dead_peer_after, say(peer, sent));
    } catch (const error& failure) {
      if (failure.code() != errc::timed_out) throw;
      std::printf("after %d messages: %s\n", static_cast<int>(sent), failure.what());
      co_return sent;
    }
  }
}

task<> stay(net::device& device) {
  auto listener = co_await device.listen(first_guest);
  auto request = co_await listener.next();
  auto peer = co_await request->accept(watchful());
  const auto there = co_await hear_region(peer);
  while (!std::filesystem::exists("/pair/frozen")) co_await sleep_for(20ms);
  co_await work_on_memory(device, peer, there);
  std::uint64_t sent = co_await send_until_it_waits(peer);
  expect(sent == receive_depth, "sends stop at the credit limit");
  std::ofstream("/pair/thaw").close();
  for (; sent < messages; ++sent) co_await say(peer, sent);
  co_await peer.close();
}

task<> freeze_and_go_on(net::device& device) {
  auto peer = co_await net::connect_with_retry(device, first_guest, watchful());
  auto memory = co_await device.pool().allocate(memory_bytes);
  std::ranges::fill(memory.bytes(), std::byte{0});
  const auto own = co_await peer.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src |
                                                               mr::usage::flush_visibility | mr::usage::atomic_dst);
  co_await tell(peer, device.pool(), own.remote());
  co_await shell(freeze);
  std::uint64_t received = 0;
  while (const auto message = co_await peer.recv()) {
    std::uint64_t number = 0;
    expect(message->size() == sizeof number, "messages are whole");
    std::memcpy(&number, message->bytes().data(), sizeof number);
    expect(number == received++, "messages come in order, and none that was given up");
  }
  expect(received == messages, "all messages come");
  expect(own.memory().bytes()[0] == std::byte(rounds), "what was written is there");
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "verbs";
  CLI::App app("What goes on while a peer's program is stopped");
  app.add_option("--device", device);
  CLI11_PARSE(app, argc, argv);
  return play("peer_frozen", device, stay, freeze_and_go_on);
}

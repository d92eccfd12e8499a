// SPDX-License-Identifier: Apache-2.0
// peer_death FAULT: in two guests, whether each live side notices within dead_peer_after that the other one is lost.
//
// Each writes to memory of the other, reads it, counts in it and sends messages, over and over, until guest 2 does to
// itself what the fault says. Then all of that has to end with the right error, and nothing may be left.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "guests.hpp"
#include "kit/tell.hpp"

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

namespace {

constexpr auto dead_peer_after = 3s;
// The machines are emulated, and the kernel looks only now and then whether the time is up.
constexpr auto at_the_latest = 3 * dead_peer_after;

constexpr std::size_t memory_bytes = std::size_t{256} << 10;
constexpr std::size_t word_bytes = 8;
constexpr int rounds_before = 20;

constexpr std::array<errc, 2> death{errc::peer_vanished, errc::peer_vanished};

struct fault {
  std::string_view name;
  const char* command;  // what guest 2 does
  // And what it hears of it, where that depends on what is under way one of two.
  std::array<errc, 2> second_hears;
  bool kills = false;  // the program in guest 2 does not end by itself
  std::array<errc, 2> first_hears = death;
};

constexpr std::array faults{
    fault{"cut", "echo cable down >/dev/virtio-ports/host", death},
    fault{"guest_killed", "echo kill >/dev/virtio-ports/host", death, true},
    // The kernel takes a dead process's memory from the device before its queue pairs: what is under way in between is
    // refused.
    fault{"process_killed", "kill -KILL $PPID", death, true, {errc::peer_vanished, errc::remote_access}},
    fault{"link_down", "ip link set eth0 down", {errc::peer_vanished, errc::connection_failed}},
    // In the background, for it waits until this process has closed the device.
    fault{"device_removed", "rdma link delete rxe0 &", {errc::connection_failed, errc::connection_failed}},
};

net::connection_options watchful() {
  net::connection_options how{.close_timeout = 1s, .dead_peer_after = dead_peer_after};
  return how;
}

/// One side, until it hears of the other one's loss.
class side {
 public:
  side(net::device& device, net::connection& peer, std::array<errc, 2> expected, const char* inflict)
      : device_(device), peer_(peer), expected_(expected), inflict_(inflict) {}

  task<> run() {
    auto memory = co_await device_.pool().allocate(memory_bytes);
    const auto own = co_await peer_.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src |
                                                                  mr::usage::flush_visibility | mr::usage::atomic_dst);
    co_await tell(peer_, device_.pool(), own.remote());
    const mr::remote_region there = co_await hear_region(peer_);
    heard();
    co_await when_all(until_the_end("a write", write(there)), until_the_end("a read", read(there)),
                      until_the_end("a fetch_add", count(there)), until_the_end("a send", send()),
                      until_the_end("a receive", receive()));
  }

 private:
  void heard() { last_sign_ = clock::steady().now(); }

  task<> until_the_end(const char* what, task<> work) {
    try {
      co_await std::move(work);
    } catch (const error& failure) {
      const auto silence = clock::steady().now() - last_sign_;
      std::printf("%s ended after %.1f s of silence: %s\n", what, std::chrono::duration<double>(silence).count(),
                  failure.what());
      if (failure.code() != expected_[0] && failure.code() != expected_[1])
        throw std::runtime_error("that is not the error to expect");
      if (silence > at_the_latest) throw std::runtime_error("that is too late");
      co_return;
    }
    throw std::runtime_error("the peer has closed");
  }

  task<> write(mr::remote_region there) {
    auto source = co_await device_.pool().allocate(memory_bytes - word_bytes);
    const auto target = there.slice(0, source.size());
    for (int round = 0;; ++round) {
      if (round == rounds_before && inflict_ != nullptr) co_await shell(inflict_);
      co_await peer_.write(source, target);
      co_await peer_.flush(target);
      heard();
    }
  }

  task<> read(mr::remote_region there) {
    auto target = co_await device_.pool().allocate(there.size());
    for (;;) co_await peer_.read(target, there);
  }

  task<> count(mr::remote_region there) {
    const auto word = there.slice(memory_bytes - word_bytes, word_bytes);
    for (;;) static_cast<void>(co_await peer_.fetch_add(word, 1));
  }

  task<> send() {
    const std::array<std::byte, 100> text{};
    for (;;) co_await peer_.send_bytes(text);
  }

  task<> receive() {
    while (const auto message = co_await peer_.recv()) heard();
  }

  net::device& device_;
  net::connection& peer_;
  std::array<errc, 2> expected_;
  const char* inflict_;  // null: the other side does it
  time_point last_sign_;
};

task<> stay(net::device& device, const fault& what) {
  auto listener = co_await device.listen(first_guest);
  auto request = co_await listener.next();
  auto peer = co_await request->accept(watchful());
  side self(device, peer, what.first_hears, nullptr);
  co_await self.run();
}

task<> suffer(net::device& device, const fault& what) {
  auto peer = co_await net::connect_with_retry(device, first_guest, watchful());
  side self(device, peer, what.second_hears, what.command);
  co_await self.run();
}

/// Plays in a child, and judges how that has ended.
int play_and_watch(const std::string& device_name, const fault& what) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto first = [&](net::device& device) { return stay(device, what); };
    const auto second = [&](net::device& device) { return suffer(device, what); };
    std::exit(play("peer_death", device_name, first, second));
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return 1;
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  if (what.kills && guest_number() == 2 && WTERMSIG(status) == SIGKILL) return 0;
  std::fprintf(stderr, "peer_death: %s\n", ::strsignal(WTERMSIG(status)));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string name;
  std::string device = "iwarp";
  CLI::App app("Whether the loss of a peer is noticed");
  app.add_option("fault", name)->required();
  app.add_option("--device", device);
  CLI11_PARSE(app, argc, argv);
  for (const fault& what : faults) {
    if (what.name == name) return play_and_watch(device, what);
  }
  std::fprintf(stderr, "peer_death: there is no fault \"%s\"\n", name.c_str());
  return 2;
}

// SPDX-License-Identifier: Apache-2.0
// A cable that can be pulled: `cable HOST:PORT MIB` listens on a port of the loopback interface, which it prints, and
// carries what comes there to HOST:PORT and back, MIB mebibytes in a second each way. SIGUSR1 pulls it: nothing goes
// through, and nothing is lost, as in a network whose ends send again. SIGUSR2 plugs it in. SIGTERM ends it. At each of
// them it prints what it is then, and how many bytes it has carried to HOST:PORT.
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace weft;

namespace {

constexpr std::size_t piece_bytes = 16384;

class cable {
 public:
  cable(net::device& device, std::string far_end, double bytes_per_second)
      : device_(device), far_end_(std::move(far_end)), bytes_per_second_(bytes_per_second) {
    plugged_.set();
  }

  void pull() noexcept { plugged_.reset(); }
  void plug_in() { plugged_.set(); }
  [[nodiscard]] std::uint64_t carried() const noexcept { return to_far_end_.bytes; }

  // A connection through it, until both directions have ended. How it ends is for its ends to say.
  task<> carry(net::stream near) {
    auto connected = co_await as_result(net::stream::connect(device_, far_end_));
    if (!connected) co_return;
    auto far = std::move(*connected);
    auto both = when_all(carry(near, far, to_far_end_), carry(far, near, from_far_end_));
    static_cast<void>(co_await as_result(std::move(both)));
  }

 private:
  struct direction {
    time_point free{};  // when the next byte may go
    std::uint64_t bytes = 0;
  };

  task<> carry(net::stream& from, net::stream& to, direction& through) {
    std::vector<std::byte> room(piece_bytes);
    while (const std::size_t count = co_await from.read_some(room)) {
      co_await plugged_.wait();
      co_await sleep_until(turn_of(count, through));
      co_await plugged_.wait();
      through.bytes += count;
      co_await to.write(std::span(room).first(count));
    }
    co_await to.shutdown_send();
  }

  // When so many bytes may go.
  time_point turn_of(std::size_t bytes, direction& through) const {
    const time_point turn = std::max(through.free, executor::current()->now());
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / bytes_per_second_);
    through.free = turn + std::chrono::ceil<duration>(takes);
    return turn;
  }

  net::device& device_;
  const std::string far_end_;
  const double bytes_per_second_;
  event plugged_;
  direction to_far_end_;
  direction from_far_end_;
};

task<> run(net::device& device, std::string far_end, double bytes_per_second, signal_set& signals) {
  cable one(device, std::move(far_end), bytes_per_second);
  auto listener = co_await net::stream_listener::listen(device, "tcp://127.0.0.1:0");
  std::printf("%s\n", std::string(listener.address()).c_str());
  const auto carry_all = [&](scope& connections) -> task<> {
    while (auto peer = co_await listener.accept()) connections.spawn(one.carry(std::move(*peer)));
  };
  const auto obey = [&]() -> task<> {
    for (;;) {
      const int signal = co_await signals.next();
      if (signal == SIGUSR1) one.pull();
      if (signal == SIGUSR2) one.plug_in();
      const char* const now = signal == SIGUSR1 ? "pulled" : signal == SIGUSR2 ? "plugged in" : "ended";
      std::printf("%s: %llu\n", now, static_cast<unsigned long long>(one.carried()));
      if (signal == SIGTERM) co_return;
    }
  };
  auto connections = with_scope(on_failure::report, carry_all);
  co_await when_any(std::move(connections), obey());
}

}  // namespace

int main(int argc, char** argv) try {
  const double mebibytes = argc == 3 ? std::atof(argv[2]) : 0;
  if (!(mebibytes > 0)) {
    std::fputs("usage: cable HOST:PORT MIB\n", stderr);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  signal_set signals{SIGTERM, SIGUSR1, SIGUSR2};
  auto device = net::device::open("iwarp");
  executor ex;
  ex.run(run(device, std::string("tcp://") + argv[1], mebibytes * 1024 * 1024, signals));
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "cable: %s\n", failure.what());
  return 1;
}

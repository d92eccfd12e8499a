// SPDX-License-Identifier: Apache-2.0
// What `./dev bench net` measures weft against: ping-pong and a one-way stream over a plain TCP socket, with as little
// around the system calls as there can be.
//
//   net_tcp serve                                          prints its port; serves one client after another
//   net_tcp run PORT pingpong|stream spin|block SIZE SECONDS    prints JSON
#include <fmt/core.h>

#include <unistd.h>

#include "kit/standard.hpp"
#include "loopback.hpp"
#include <perf/histogram.hpp>

namespace {

using clock_type = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

/// What the client wants, as it travels between two processes of one machine.
struct order {
  std::uint32_t size = 0;
  bool echo = false;
  bool spin = false;
};

class socket_handle : private weft::test::immovable {
 public:
  socket_handle(int fd, const char* made_by) : fd_(fd) {
    if (fd_ < 0) fail(made_by);
  }
  ~socket_handle() { ::close(fd_); }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  void send_at_once() const {
    if (!weft::bench::send_at_once(fd_)) fail("setsockopt");
  }
  void spin(bool yes) noexcept { flags_ = yes ? MSG_DONTWAIT : 0; }

  /// At least one byte; 0 at the end of the stream.
  [[nodiscard]] std::size_t receive_some(std::span<std::byte> into) const {
    while (true) {
      const ssize_t got = ::recv(fd_, into.data(), into.size(), flags_);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EAGAIN && errno != EINTR) fail("recv");
    }
  }
  /// All of it; false at the end of the stream.
  [[nodiscard]] bool receive(std::span<std::byte> into) const {
    while (!into.empty()) {
      const std::size_t got = receive_some(into);
      if (got == 0) return false;
      into = into.subspan(got);
    }
    return true;
  }
  void send(std::span<const std::byte> from) const {
    while (!from.empty()) {
      const ssize_t gone = ::send(fd_, from.data(), from.size(), flags_ | MSG_NOSIGNAL);
      if (gone >= 0) {
        from = from.subspan(static_cast<std::size_t>(gone));
      } else if (errno != EAGAIN && errno != EINTR) {
        fail("send");
      }
    }
  }

 private:
  int fd_;
  int flags_ = 0;
};

void attend(socket_handle& client) {
  client.send_at_once();
  order wanted;
  if (!client.receive(std::as_writable_bytes(std::span(&wanted, 1))) || wanted.size == 0) return;
  client.spin(wanted.spin);
  std::vector<std::byte> memory(wanted.size);
  if (wanted.echo) {
    while (client.receive(memory)) client.send(memory);
    return;
  }
  while (client.receive_some(memory) != 0) {
  }
  client.send(std::span(memory).first(1));  // all has arrived
}

[[noreturn]] void serve() {
  const socket_handle listener(weft::bench::listen_anywhere(), "listen");
  while (true) {
    socket_handle client(::accept(listener.fd(), nullptr, nullptr), "accept");
    attend(client);
  }
}

void report(const perf::histogram& times, clock_type::duration all) {
  const double seconds = std::chrono::duration<double>(all).count();
  fmt::print(R"({{"operations": {}, "seconds": {}, "p50_ns": {}, "mean_ns": {}}}{})", times.count(), seconds,
             times.percentile(50), seconds * 1e9 / static_cast<double>(times.count()), '\n');
}

void run(std::uint16_t port, const order& wanted, clock_type::duration time) {
  socket_handle server(weft::bench::connect_to(port), "connect");
  server.send_at_once();
  server.send(std::as_bytes(std::span(&wanted, 1)));
  server.spin(wanted.spin);
  std::vector<std::byte> memory(wanted.size);
  perf::histogram times;
  const auto start = clock_type::now();
  const auto end = start + time;
  for (auto begin = start; begin < end;) {
    server.send(memory);
    if (wanted.echo && !server.receive(memory)) throw std::runtime_error("the server has gone");
    const auto done = clock_type::now();
    times.record(done - begin);
    begin = done;
  }
  if (!wanted.echo) {
    ::shutdown(server.fd(), SHUT_WR);
    if (!server.receive(std::span(memory).first(1))) throw std::runtime_error("the server has gone");
  }
  report(times, clock_type::now() - start);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && arguments[0] == "serve") serve();
  if (arguments.size() != 6 || arguments[0] != "run") {
    fmt::print(stderr, "usage: net_tcp serve\n       net_tcp run PORT pingpong|stream spin|block SIZE SECONDS\n");
    return 2;
  }
  const order wanted{.size = static_cast<std::uint32_t>(std::stoul(argv[5])),
                     .echo = arguments[2] == "pingpong",
                     .spin = arguments[3] == "spin"};
  const std::chrono::duration<double> time(std::stod(argv[6]));
  run(static_cast<std::uint16_t>(std::stoul(argv[2])), wanted, std::chrono::duration_cast<clock_type::duration>(time));
  return 0;
} catch (const std::exception& why) {
  fmt::print(stderr, "net_tcp: {}\n", why.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// echo_load PORT SERVER_PID CONNECTIONS BYTES SECONDS: asks an echo server, with one request outstanding on each
// connection, and checks what comes back. Written by hand on epoll, so that every server meets the same load.
//
// Prints how many requests were answered in how many seconds, and the processor time that the server and this program
// took meanwhile, as JSON.
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "kit/standard.hpp"
#include "loopback.hpp"

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds warm_up(300);
constexpr int patience_ms = 5000;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void expect(bool is_true, const char* what) {
  if (!is_true) fail(std::string(what) + ": " + std::strerror(errno));
}

double seconds_of(clockid_t clock) {
  timespec now{};
  expect(::clock_gettime(clock, &now) == 0, "clock_gettime");
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

struct connection {
  int fd = -1;
  std::uint64_t asked = 0;   // requests
  std::size_t answered = 0;  // bytes of the last one
};

// What the requests of all connections are made of.
class load : private weft::test::immovable {
 public:
  load(std::uint16_t port, std::size_t connections, std::size_t bytes)
      : poller_(::epoll_create1(EPOLL_CLOEXEC)), connections_(connections), request_(bytes), answers_(connections) {
    expect(poller_ >= 0, "epoll_create1");
    for (std::size_t i = 0; i < bytes; ++i) request_[i] = static_cast<std::byte>(i * 7 + i / 256);
    // Room for more than an answer: a receive that fills less of it has emptied the socket.
    for (auto& answer : answers_) answer.resize(2 * bytes);
    for (std::size_t i = 0; i < connections; ++i) connect(i, port);
  }
  ~load() {
    for (const connection& each : connections_) ::close(each.fd);
    ::close(poller_);
  }

  void begin() {
    for (std::size_t i = 0; i < connections_.size(); ++i) ask(i);
  }

  // Asks anew where an answer is complete, until then.
  void run_until(steady_clock::time_point end) {
    while (steady_clock::now() < end) turn(true);
  }

  // Takes the answers that are due, so that no server sees a connection reset.
  void end() {
    while (outstanding_ > 0) turn(false);
  }

  [[nodiscard]] std::uint64_t answers() const noexcept { return complete_; }

 private:
  void connect(std::size_t index, std::uint16_t port) {
    connection& self = connections_[index];
    self.fd = weft::bench::connect_to(port);
    expect(self.fd >= 0, "connect");
    expect(weft::bench::send_at_once(self.fd), "TCP_NODELAY");
    epoll_event wanted{.events = EPOLLIN | EPOLLET, .data = {.u64 = index}};
    expect(::epoll_ctl(poller_, EPOLL_CTL_ADD, self.fd, &wanted) == 0, "epoll_ctl");
  }

  // No two requests are the same, so that an answer to another one is noticed.
  void name_request(std::size_t index) noexcept {
    const std::array<std::uint64_t, 2> name{index, connections_[index].asked};
    std::memcpy(request_.data(), name.data(), sizeof name);
  }

  void ask(std::size_t index) {
    connection& self = connections_[index];
    ++self.asked;
    self.answered = 0;
    name_request(index);
    const ssize_t sent = ::send(self.fd, request_.data(), request_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    expect(sent == static_cast<ssize_t>(request_.size()), "send of a request");
    ++outstanding_;
  }

  void turn(bool go_on) {
    std::array<epoll_event, 128> events;
    const int ready = ::epoll_wait(poller_, events.data(), static_cast<int>(events.size()), patience_ms);
    expect(ready >= 0, "epoll_wait");
    if (ready == 0) fail("no answer in 5 s");
    for (int i = 0; i < ready; ++i) {
      const std::size_t index = events[static_cast<std::size_t>(i)].data.u64;
      if (take(index) && go_on) ask(index);
    }
  }

  // Whether the answer is complete.
  bool take(std::size_t index) {
    connection& self = connections_[index];
    std::vector<std::byte>& answer = answers_[index];
    for (;;) {
      const std::size_t room = answer.size() - self.answered;
      const ssize_t got = ::recv(self.fd, answer.data() + self.answered, room, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return false;
      expect(got >= 0, "recv");
      if (got == 0) fail("the server has closed a connection");
      self.answered += static_cast<std::size_t>(got);
      if (self.answered >= request_.size() || static_cast<std::size_t>(got) < room) break;
    }
    if (self.answered < request_.size()) return false;
    name_request(index);
    if (self.answered > request_.size() || !std::equal(request_.begin(), request_.end(), answer.begin()))
      fail("an answer differs from its request");
    --outstanding_;
    ++complete_;
    return true;
  }

  int poller_;
  std::vector<connection> connections_;
  std::vector<std::byte> request_;
  std::vector<std::vector<std::byte>> answers_;
  std::uint64_t complete_ = 0;
  std::size_t outstanding_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::fputs("usage: echo_load PORT SERVER_PID CONNECTIONS BYTES SECONDS\n", stderr);
    return 2;
  }
  clockid_t server{};
  if (::clock_getcpuclockid(std::atoi(argv[2]), &server) != 0) fail("there is no such server process");
  const std::size_t bytes = std::strtoull(argv[4], nullptr, 10);
  if (bytes < 16) fail("a request has at least 16 bytes");
  load all(static_cast<std::uint16_t>(std::atoi(argv[1])), std::strtoull(argv[3], nullptr, 10), bytes);
  const std::chrono::duration<double> length(std::strtod(argv[5], nullptr));

  all.begin();
  all.run_until(steady_clock::now() + warm_up);
  const std::uint64_t answers_before = all.answers();
  const double server_before = seconds_of(server);
  const double own_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const auto start = steady_clock::now();
  all.run_until(start + std::chrono::duration_cast<steady_clock::duration>(length));
  const std::chrono::duration<double> took = steady_clock::now() - start;
  const double server_took = seconds_of(server) - server_before;
  const double own_took = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own_before;
  const std::uint64_t answers = all.answers() - answers_before;
  all.end();
  std::printf("{\"requests\": %llu, \"seconds\": %.6f, \"server_cpu_seconds\": %.6f, \"load_cpu_seconds\": %.6f}\n",
              static_cast<unsigned long long>(answers), took.count(), server_took, own_took);
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "echo_load: %s\n", why.what());
  return 1;
}

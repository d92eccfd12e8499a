// SPDX-License-Identifier: Apache-2.0
// net_idle DEVICE COUNT: opens so many connections between two processes, and prints as JSON what both hold of memory
// before and after, while nothing goes over them. `./dev bench shm` divides the difference.
//
// PSS is what a process has in memory, where what two share counts half for each. Both processes have had a few
// connections before, so that what is there once and for all is not counted.
#include <weft/weft.hpp>

#include <fmt/core.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "kit/standard.hpp"

namespace {

using namespace weft;
using namespace std::chrono_literals;

constexpr std::size_t first_connections = 16;

/// KiB.
struct memory_use {
  std::uint64_t rss = 0;
  std::uint64_t pss = 0;
  std::uint64_t shared_memory = 0;  ///< of PSS
  std::uint64_t page_tables = 0;
};

// The number behind a name in one of the kernel's tables; 0 if it is not there.
std::uint64_t find_in(const char* table, std::string_view name) {
  std::ifstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::stoull(line.substr(name.size()));
  }
  return 0;
}

memory_use look() {
  return {.rss = find_in("/proc/self/smaps_rollup", "Rss:"),
          .pss = find_in("/proc/self/smaps_rollup", "Pss:"),
          .shared_memory = find_in("/proc/self/smaps_rollup", "Pss_Shmem:"),
          .page_tables = find_in("/proc/self/status", "VmPTE:")};
}

std::uint64_t kernel_kib() { return find_in("/proc/meminfo", "Slab:"); }

/// What the two processes say to each other beside the connections: plain bytes, in turn.
class wire {
 public:
  explicit wire(int fd) noexcept : fd_(fd) {}

  template <class Value>
  void say(const Value& value) const {
    if (::write(fd_, &value, sizeof value) != sizeof value)
      throw std::system_error(errno, std::system_category(), "write");
  }
  template <class Value>
  [[nodiscard]] Value hear() const {
    Value value{};
    if (::read(fd_, &value, sizeof value) != sizeof value)
      throw std::system_error(errno, std::system_category(), "read");
    return value;
  }

 private:
  int fd_;
};

using address_text = std::array<char, 64>;

net::connection_options small() {
  net::connection_options chosen{.receive_size = 256, .receive_depth = 4, .set_up_timeout = 60s};
  return chosen;
}

net::device open(const std::string& name) {
  const net::device_options options{.pool = {.max_bytes = std::size_t{1} << 30}};
  return net::device::open(name, options);
}

task<> serve(net::device& device, wire other, std::size_t count) {
  auto listener = co_await device.listen("127.0.0.1:0", {.max_connections = count + first_connections});
  address_text text{};
  std::string(listener.address()).copy(text.data(), text.size() - 1);
  other.say(text);
  std::vector<net::connection> all;
  all.reserve(count + first_connections);
  for (const std::size_t wanted : {first_connections, count}) {
    for (std::size_t i = 0; i < wanted; ++i) {
      auto request = co_await listener.next();
      all.push_back(co_await request->accept(small()));
    }
    co_await sleep_for(200ms);
    other.say(look());
  }
  while (co_await all.front().recv()) {
  }
}

task<> connect(net::device& device, wire other, std::size_t count) {
  const std::string address(other.hear<address_text>().data());
  std::vector<net::connection> all;
  all.reserve(count + first_connections);
  std::array<memory_use, 2> ours;
  std::array<memory_use, 2> theirs;
  std::array<std::uint64_t, 2> kernel{};
  std::size_t stage = 0;
  for (const std::size_t wanted : {first_connections, count}) {
    for (std::size_t i = 0; i < wanted; ++i) all.push_back(co_await device.connect(address, small()));
    co_await sleep_for(100ms);
    ours[stage] = look();
    theirs[stage] = other.hear<memory_use>();
    kernel[stage++] = kernel_kib();
  }
  const auto grown = [&](std::uint64_t memory_use::*what) {
    const auto difference = ours[1].*what + theirs[1].*what - ours[0].*what - theirs[0].*what;
    return static_cast<double>(difference) / static_cast<double>(count);
  };
  fmt::print(R"({{"connections": {}, "fabric": "{}", "rss_kib": {}, "pss_kib": {}, "shmem_kib": {}, )"
             R"("page_tables_kib": {}, "slab_kib": {}}}{})",
             count, all.back().fabric(), grown(&memory_use::rss), grown(&memory_use::pss),
             grown(&memory_use::shared_memory), grown(&memory_use::page_tables),
             (static_cast<double>(kernel[1]) - static_cast<double>(kernel[0])) / static_cast<double>(count), '\n');
  std::fflush(stdout);
  co_await all.front().close();
  ::_exit(0);  // thousands of orderly ends are not what is measured
}

void allow_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    fmt::print(stderr, "usage: net_idle DEVICE COUNT\n");
    return 2;
  }
  const std::string name = argv[1];
  const std::size_t count = std::stoull(argv[2]);
  allow_files();
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::system_category(), "socketpair");
  }
  const pid_t other = ::fork();
  if (other < 0) throw std::system_error(errno, std::system_category(), "fork");
  const bool serves = other == 0;
  if (serves) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto device = open(name);
  executor loop;
  loop.run(serves ? serve(device, wire(ends[0]), count) : connect(device, wire(ends[1]), count));
  return 0;
} catch (const std::exception& why) {
  fmt::print(stderr, "net_idle: {}\n", why.what());
  return 1;
}

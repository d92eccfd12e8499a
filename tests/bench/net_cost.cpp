// SPDX-License-Identifier: Apache-2.0
// net_cost OPERATION COUNT [DEVICE]: does so many operations between two connections of one executor, over iwarp or the
// device that is named, and prints as JSON how often that allocated. `./dev bench net` and `./dev bench shm` run it
// under callgrind and strace with two counts: the difference is what the operations cost, both ends together.
#include <weft/mr/system/mapping.hpp>
#include <weft/weft.hpp>

#include <fmt/core.h>

#include "count_allocations.hpp"

namespace {

using namespace weft;

constexpr std::uint64_t warm_up = 200;

/// Two connected peers and the memory that they use.
struct peers {
  peers(net::connection ours, net::connection theirs, mr::buffer local) noexcept
      : client(std::move(ours)), server(std::move(theirs)), memory(std::move(local)) {}

  net::connection client;
  net::connection server;
  mr::buffer memory;
  std::optional<net::exposure> open;
};

using operation = task<> (*)(peers& between, std::uint64_t count);

// Half of the messages go one way, half the other.
task<> send(peers& between, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; i += 2) {
    co_await between.client.send(between.memory);
    auto there = co_await between.server.recv_or_throw();
    co_await between.server.send(std::move(there.payload));
    static_cast<void>(co_await between.client.recv_or_throw());
  }
}

// The same, received into memory of the program's.
task<> send_into(peers& between, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; i += 2) {
    co_await between.client.send(between.memory);
    static_cast<void>(co_await between.server.recv_into(between.memory));
    co_await between.server.send(between.memory);
    static_cast<void>(co_await between.client.recv_into(between.memory));
  }
}

// The same in a loop that does without operations.
task<> try_send(peers& between, std::uint64_t count) {
  const auto exchange = [&between](net::connection& from, net::connection& to) -> bool {
    if (!from.try_send(between.memory)) return false;
    return to.try_recv().has_value();
  };
  for (std::uint64_t i = 0; i < count; i += 2) {
    if (!exchange(between.client, between.server) || !exchange(between.server, between.client)) {
      throw error(errc::not_supported, "messages do not end where they begin over this transport");
    }
  }
  co_return;
}

// Each message is awaited by a task of its own, one after the other, as the handlers of a server do.
constexpr std::uint16_t senders = 64;
task<> send_beside(peers& between, std::uint64_t count) {
  const auto send_some = [&]() -> task<> {
    for (std::uint64_t i = 0; i < count / senders; ++i) co_await between.client.send(between.memory);
  };
  const auto receive_all = [&]() -> task<> {
    for (std::uint64_t i = 0; i < count / senders * senders; ++i) {
      static_cast<void>(co_await between.server.recv_or_throw());
    }
  };
  const auto all = [&](scope& tasks) -> task<> {
    tasks.spawn(receive_all());
    for (std::uint64_t i = 0; i < senders; ++i) tasks.spawn(send_some());
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, all);
}

task<> write_each(peers& between, std::uint64_t& left) {
  while (left != 0) {
    --left;
    co_await between.client.write(between.memory, between.open->remote());
  }
}

template <unsigned depth>
task<> write(peers& between, std::uint64_t count) {
  const auto in_flight = [&](scope& all) -> task<> {
    for (unsigned i = 0; i < depth; ++i) all.spawn(write_each(between, count));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, in_flight);
  co_await between.client.flush(between.open->remote());
}

task<> read(peers& between, std::uint64_t count) {
  for (; count != 0; --count) co_await between.client.read(between.memory, between.open->remote());
}

task<> write_prepared(peers& between, std::uint64_t count) {
  auto there = between.client.prepare(between.open->remote());
  for (; count != 0; --count) co_await there.write(between.memory);
}

task<> read_prepared(peers& between, std::uint64_t count) {
  auto there = between.client.prepare(between.open->remote());
  for (; count != 0; --count) co_await there.read(between.memory);
}

struct row {
  std::string_view name;
  std::size_t size;
  operation run;
  bool direct = false;  // the client maps the memory
  bool deep = false;    // receives for all senders
};

constexpr std::array rows{row{"prepared_write_64", 64, write_prepared, true},
                          row{"prepared_read_64", 64, read_prepared, true},
                          row{"send_64", 64, send},
                          row{"try_send_64", 64, try_send},
                          row{"send_into_64", 64, send_into},
                          row{"send_64_beside", 64, send_beside, false, true},
                          row{"write_64", 64, write<64>},
                          row{"read_64", 64, read},
                          row{"write_1M", 1 << 20, write<16>},
                          row{"direct_write_64", 64, write<64>, true},
                          row{"direct_read_64", 64, read, true}};

// Of memory that a client can map, which is a file of its own.
task<net::exposure> open_file(net::device& device, net::connection& to, std::size_t size, mr::usage uses) {
  auto file = mr::mapping::in_memory_file(std::size_t{1} << 20, false, -1, system_calls::kernel());
  auto region =
      co_await device.domain().register_memory(std::move(file), {.usage = mr::usage::bind_window, .direct = true});
  co_return co_await to.expose(region.slice(0, size), uses);
}

task<peers> connect(net::device& device, std::size_t size, bool direct, bool deep) {
  auto listener = co_await device.listen("127.0.0.1:0");
  net::connection_options options;
  if (deep) options.receive_depth = 2 * senders;
  std::optional<net::connection> theirs;
  const auto accept = [&]() -> task<> {
    auto request = co_await listener.next();
    theirs.emplace(co_await request->accept(options));
  };
  std::optional<net::connection> ours;
  const auto call = [&]() -> task<> {
    ours.emplace(co_await device.connect(std::string(listener.address()), options));
  };
  co_await when_all(accept(), call());
  auto memory = co_await device.pool().allocate(size);
  peers between(std::move(*ours), std::move(*theirs), std::move(memory));
  constexpr mr::usage uses = mr::usage::write_dst | mr::usage::read_src;
  if (direct) {
    between.open = co_await open_file(device, between.server, size, uses);
  } else {
    auto target = co_await device.pool().allocate(size, mr::budget::receive);
    between.open = co_await between.server.expose(std::move(target), uses);
  }
  co_return between;
}

/// As long as it lives, the executor does not sleep. Under valgrind a thread that waits in io_uring_enter keeps all
/// others from running, so that set-up and end, in which worker threads take part, must go without.
class awake final : private poller, private weft::test::immovable {
 public:
  awake() { executor::current()->add_poller(*this); }
  ~awake() { executor::current()->remove_poller(*this); }

 private:
  std::size_t poll(std::size_t) noexcept override {
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // few turns, whose number is left to luck
    return 1;
  }
  void arm() noexcept override {}
  void disarm() noexcept override {}
  int wait_fd() const noexcept override { return -1; }
};

task<std::uint64_t> measure(net::device& device, const row& what, std::uint64_t count) {
  std::optional<awake> no_sleep(std::in_place);
  auto between = co_await connect(device, what.size, what.direct, what.deep);
  co_await what.run(between, warm_up);
  no_sleep.reset();
  const std::uint64_t before = bench::allocations();
  co_await what.run(between, count);
  const std::uint64_t during = bench::allocations() - before;
  no_sleep.emplace();
  between.open.reset();  // a region of a file goes on a worker
  const auto hear_the_end = [&]() -> task<> {
    static_cast<void>(co_await between.server.recv());
    co_await between.server.close();  // before the executor may sleep
  };
  co_await when_all(between.client.close(), hear_the_end());
  co_return during;
}

}  // namespace

int main(int argc, char** argv) try {
  for (const row& what : rows) {
    if (argc < 3 || argc > 4 || what.name != argv[1]) continue;
    const std::string device_name = argc == 4 ? argv[3] : "iwarp";
    auto device = net::device::open(device_name, {.iwarp = {.checksum = false}});
    executor_options how;
    how.policy = poll_policy::sleep;  // how often a spinning one looks is a matter of luck
    executor loop(how);
    const std::uint64_t count = std::stoull(argv[2]);
    const std::uint64_t during = loop.run(measure(device, what, count));
    fmt::print(R"({{"operations": {}, "allocations": {}, "driver": "{}"}}{})", count, during, loop.driver(), '\n');
    return 0;
  }
  fmt::print(stderr, "usage: net_cost OPERATION COUNT [DEVICE], of these operations:");
  for (const row& what : rows) fmt::print(stderr, " {}", what.name);
  fmt::print(stderr, "\n");
  return 2;
} catch (const std::exception& why) {
  fmt::print(stderr, "net_cost: {}\n", why.what());
  return 1;
}

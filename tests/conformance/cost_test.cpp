// SPDX-License-Identifier: Apache-2.0
// What an operation costs: no allocation, few system calls; and an idle connection costs nothing.
#include "peers.hpp"

namespace weft::test {
namespace {

/// Counts what goes to TCP, by whichever way.
class counting_calls final : public system_calls {
 public:
  [[nodiscard]] std::size_t sends() const noexcept { return sends_; }

  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    ++sends_;
    return system_calls::sendmsg(fd, message, flags);
  }
  int permit_ring_operation(std::uint8_t operation) noexcept override {
    if (static_cast<io_kind>(operation) == io_kind::send) ++sends_;
    return 0;
  }

 private:
  std::size_t sends_ = 0;
};

class cost : public peers {
 protected:
  template <class Script>
  void counting_sends(Script script, net::connection_options how = options()) {
    counting_calls calls;
    open_executor({.system_calls = &calls});
    between_peers([&](net::connection& client, net::connection& server) { return script(client, server, calls); }, how,
                  how);
    open_executor({});  // the other one goes before what it calls
  }
};
WEFT_ON_EVERY_TRANSPORT(cost);

TEST_P_WHERE(cost, no_heap_allocation_per_operation_after_warm_up, !sanitized,
             "the sanitizers have an allocator of their own") {
  const auto answers = [&]() -> task<> {
    while (auto message = co_await server.recv()) {
      co_await server.send(std::move(message->payload), {.immediate = message->immediate});
    }
  };
  attempt answering(tasks, answers());
  const auto open =
      co_await expose_zeros(server, 100'000, mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst);
  auto source = co_await filled(pool(), 100'000, 1);
  const auto round = [&]() -> task<> {
    co_await client.send(co_await pool().allocate(64), {.immediate = 1});
    const auto answer = co_await client.recv_or_throw();
    co_await client.write(source, open.remote());
    co_await client.read(source, open.remote());
    std::array both{client.write(source, open.remote()), client.flush(open.remote())};
    co_await client.batch(both);
    if (client.capabilities().write_immediate) {
      co_await client.write(source, open.remote(), {.immediate = 1});
      static_cast<void>(co_await client.recv_or_throw());
    }
    if (!client.capabilities().atomics) co_return;
    const auto before = co_await client.fetch_add(open.remote().slice(0, 8), 1);
    static_cast<void>(co_await client.compare_swap(open.remote().slice(0, 8), before + 1, before));
  };
  for (int i = 0; i < 500; ++i) co_await round();
  const std::size_t before = allocations();
  for (int i = 0; i < 3000; ++i) co_await round();
  EXPECT_EQ(allocations() - before, 0u);
  co_await client.close();
  co_await answering.end();
}

TEST_P_WHERE(cost, no_heap_allocation_for_a_list_of_thousands_of_blocks_once_there_was_one, has_windows() && !sanitized,
             "this device has no memory windows, or the sanitizers have an allocator of their own") {
  constexpr std::uint32_t count = 5000;
  constexpr std::size_t block = 64;
  const auto open = co_await expose_zeros(server, count * block);
  auto local = co_await filled(pool(), count * block, 1);
  std::vector<net::block_pair> pairs(count);
  for (std::uint32_t i = 0; i != count; ++i) pairs[i] = {.local = i, .remote = count - 1 - i};
  std::vector<net::list_part> parts;
  for (const auto& pair : pairs) {
    parts.push_back(
        {local.slice().subslice(pair.local * block, block), open.remote().slice(pair.remote * block, block)});
  }
  const net::block_list blocks{.local = local.slice(), .remote = open.remote(), .block_bytes = block, .blocks = pairs};
  const auto all = [&]() -> task<> {
    co_await client.write(blocks);
    co_await client.write(parts);
    co_await client.read(blocks);
    co_await client.read(parts);
  };
  co_await all();
  const std::size_t before = allocations();
  co_await all();
  EXPECT_EQ(allocations() - before, 0u);
}

/// With both ends of a connection whose executor's calls are counted.
#define TEST_P_COUNTED(suite, name, ...)                                                                        \
  TEST_P_SCRIPT(suite, name, (net::connection & client, net::connection & server, const counting_calls& calls), \
                if (!GetParam().over_tcp) GTEST_SKIP() << "what a device is told is no system call of ours";    \
                counting_sends(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

TEST_P_COUNTED(cost, a_batch_of_small_operations_is_one_system_call) {
  const auto open = co_await expose_zeros(server, 64);
  auto source = co_await filled(pool(), 64, 1);
  const auto write = [&] { return client.write(source, open.remote()); };
  const auto send = [&] { return client.send(source); };
  for (int i = 0; i < 10; ++i) {
    std::array members{write(), send(), write(), write(), send(), write(), write(), write()};
    co_await settle();  // credits of the round before have gone their way
    const std::size_t before = calls.sends();
    co_await client.batch(members);
    EXPECT_EQ(calls.sends() - before, 1u);
    static_cast<void>(co_await server.recv_or_throw());
    static_cast<void>(co_await server.recv_or_throw());
  }
}

constexpr std::uint16_t senders = 32;
TEST_P_COUNTED(cost, what_the_tasks_of_a_turn_have_posted_is_one_system_call, options({.receive_depth = 2 * senders})) {
  auto source = co_await filled(pool(), 64, 1);
  const auto send = [&]() -> task<> { co_await client.send(source); };
  const auto all = [&](scope& tasks) -> task<> {
    for (std::size_t i = 0; i < senders; ++i) tasks.spawn(send());
    co_return;
  };
  for (int round = 0; round < 10; ++round) {
    co_await settle();  // credits of the round before have gone their way
    const std::size_t before = calls.sends();
    co_await with_scope(on_failure::stop_siblings, all);
    co_await yield();  // small messages leave at the end of the turn
    EXPECT_EQ(calls.sends() - before, 1u);
    for (std::size_t i = 0; i < senders; ++i) static_cast<void>(co_await server.recv_or_throw());
  }
}

TEST_P_COUNTED(cost, answers_to_messages_that_came_together_are_one_system_call) {
  constexpr std::size_t messages = 8;
  constexpr std::size_t rounds = 10;
  auto source = co_await filled(pool(), 64, 1);
  const auto answer = [&]() -> task<> { co_await server.send(source); };
  const auto serve = [&](scope& answers) -> task<> {
    for (std::size_t i = 0; i < messages; ++i) {
      static_cast<void>(co_await server.recv_or_throw());
      answers.spawn(answer());
    }
  };
  std::size_t sends = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < messages; ++i) co_await client.send(source);
    co_await settle();  // they have come
    const std::size_t before = calls.sends();
    co_await with_scope(on_failure::stop_siblings, serve);
    sends += calls.sends() - before;
    for (std::size_t i = 0; i < messages; ++i) static_cast<void>(co_await client.recv_or_throw());
    co_await settle();  // credits have gone their way
  }
  // The credits go first, in the turn that receives. Now and then others have a turn between two messages.
  EXPECT_LE(sends, 2 * rounds + 1);
}

std::uint64_t kernel_entries() { return executor_core::current()->io().kernel_entries(); }

TEST_P(cost, a_look_in_vain_at_a_connection_takes_no_turn_of_the_executor) {
  if (!GetParam().over_tcp) GTEST_SKIP() << "the executor polls a device";
  const executor_options spinning{.policy = poll_policy::spin, .max_spin = std::chrono::milliseconds(2)};
  open_executor(spinning);
  between_peers([&](net::connection&, net::connection&) -> task<> {
    co_await settle();
    const executor& home = *executor::current();
    const std::uint64_t turns = home.statistics().turns;
    const std::uint64_t looks = kernel_entries();
    const time_point begin = home.now();
    unsigned naps = 0;
    // A ring is told to look, and needs no call for that.
    do {
      co_await sleep_for(std::chrono::milliseconds(5));
      ++naps;
    } while (home.driver() == "epoll" && kernel_entries() - looks < 1000);
    const auto spins = static_cast<std::uint64_t>((home.now() - begin) / spinning.max_spin);
    EXPECT_LE(home.statistics().turns - turns, spins + 4 * naps + 10);
  });
}

const executor_options sleepy{.policy = poll_policy::sleep};

TEST_P(cost, at_most_two_system_calls_per_small_message_and_side) {
  constexpr unsigned rounds = 2000;
  std::uint64_t server_calls = 0;
  std::uint64_t client_calls = 0;
  const auto exchange = [&](net::connection& peer, bool begins) -> task<std::uint64_t> {
    std::uint64_t before = 0;
    for (unsigned i = 0; i < rounds + 100; ++i) {
      if (i == 100) before = kernel_entries();
      if (begins) co_await peer.send(co_await pool().allocate(32));
      auto message = co_await peer.recv_or_throw();
      if (!begins) co_await peer.send(std::move(message.payload));
    }
    co_return kernel_entries() - before;
  };
  const auto serve = [&](net::connection& peer) -> task<> {
    server_calls = co_await exchange(peer, false);
    static_cast<void>(co_await peer.recv());
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    client_calls = co_await exchange(peer, true);
    co_await peer.close();
  };
  open_executor(sleepy);
  on_two_threads(serve, ask, options(), options(), sleepy);
  constexpr std::uint64_t messages = 2 * rounds;  // that each side sends or receives
  EXPECT_LE(server_calls, 2 * messages);
  EXPECT_LE(client_calls, 2 * messages);
  RecordProperty("server_calls_per_message_x100", static_cast<int>(server_calls * 100 / messages));
  RecordProperty("client_calls_per_message_x100", static_cast<int>(client_calls * 100 / messages));
}

TEST_P(cost, an_idle_connection_wakes_nobody) {
  std::uint64_t turns = 0;
  const auto serve = [&](net::connection& peer) -> task<> {
    auto first = co_await peer.recv_or_throw();
    co_await peer.send(std::move(first.payload));
    const executor& there = *executor::current();
    const std::uint64_t before = there.statistics().turns;
    static_cast<void>(co_await peer.recv_or_throw());
    turns = there.statistics().turns - before;
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    auto payload = co_await pool().allocate(32);
    co_await peer.send(payload);
    static_cast<void>(co_await peer.recv_or_throw());
    co_await sleep_for(300ms);  // the time in which nothing is to happen over there
    co_await peer.send(payload);
    static_cast<void>(co_await peer.recv());
  };
  on_two_threads(serve, ask, options(), options(), sleepy);
  EXPECT_LE(turns, 10u);
}

}  // namespace
}  // namespace weft::test

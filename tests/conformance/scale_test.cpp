// SPDX-License-Identifier: Apache-2.0
// Many connections in one process: they share it fairly, cost little while they are idle, and leave nothing behind.
#include <weft/net/software/domain.hpp>

#include <malloc.h>

#include <cmath>
#include <cstdio>

#include "equal_shares.hpp"

namespace weft::test {
namespace {

constexpr std::size_t kib = 1024;

/// Bytes that this process has allocated from the heap and not freed; buffers of the pool are not among them.
std::size_t live_heap_bytes() {
  const auto heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

class scale : public peers {
 protected:
  /// Room for so many connections with both their ends in this process; false where the limit forbids it.
  static bool make_room_for(std::size_t connections) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t needed = 2 * connections + 200;
    if (limit.rlim_max < needed) return false;
    limit.rlim_cur = std::max(limit.rlim_cur, needed);
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }

  /// Small receives, so that the pool is not what limits their number.
  static net::connection_options small() {
    auto chosen = options({.receive_size = 256, .receive_depth = 4, .set_up_timeout = 60s});
    chosen.dead_peer_after = 0ms;  // nobody is asked for a sign of life meanwhile
    return chosen;
  }

  task<connected> connect_to(net::listener& listener) {
    auto both =
        co_await when_all(device().connect(std::string(listener.address()), small()), accept_one(listener, small()));
    co_return connected(std::move(std::get<0>(both)), std::move(std::get<1>(both)));
  }

  task<std::vector<connected>> connect_many(std::size_t count) {
    net::listener listener = co_await device().listen(std::string(GetParam().any_address));
    std::vector<connected> all;
    all.reserve(count);
    while (all.size() < count) all.push_back(co_await connect_to(listener));
    co_return all;
  }

  task<> close_all(std::vector<connected>& all) {
    for (connected& ends : all) co_await when_all(ends.client.close(), ends.server.close());
  }

  [[nodiscard]] std::size_t keys() { return static_cast<net::software::domain&>(device().domain()).keys().size(); }
};
WEFT_ON_EVERY_TRANSPORT(scale);

TEST_P(scale, a_thousand_active_connections_share_fairly) {
  constexpr std::size_t connections = 1000;
  constexpr std::size_t mean = 200;  // round trips
  if (sanitized) GTEST_SKIP() << "sanitizers take longer for it than any test may";
  if (!make_room_for(connections)) GTEST_SKIP() << "the limit of open files is too low";
  run([&]() -> task<> {
    std::vector<connected> all = co_await connect_many(connections);
    const std::vector<std::size_t> served = co_await round_trips_of_each(pool(), all, mean);
    const auto [least, most] = std::ranges::minmax(served);
    double squares = 0;
    for (const std::size_t count : served)
      squares += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean);
    std::printf(
        "round trips of a connection when all together had made %zu: mean %zu, least %zu, most %zu, deviation %.1f\n",
        connections * mean, mean, least, most, std::sqrt(squares / connections));
    EXPECT_GE(least, mean / 2);
    EXPECT_LE(most, mean * 2);
  });
}

TEST_P(scale, five_thousand_idle_connections_hold_at_most_16_kib_each) {
  constexpr std::size_t connections = 5000;
  if (sanitized) GTEST_SKIP() << "the sanitizers have an allocator of their own";
  if (!make_room_for(connections)) GTEST_SKIP() << "the limit of open files is too low";
  run([&]() -> task<> {
    {
      std::vector<connected> first = co_await connect_many(10);  // with what is there once and for all
      co_await close_all(first);
    }
    const std::size_t before = live_heap_bytes();
    std::vector<connected> all = co_await connect_many(connections);
    co_await settle();
    const std::size_t each = (live_heap_bytes() - before) / (2 * connections);
    std::printf("an idle connection holds %zu bytes of the heap, with room for %u operations\n", each,
                unsigned{small().send_depth});
    EXPECT_LE(each, 16 * kib);
    co_await close_all(all);
  });
}

TEST_P_TASK(scale, ten_thousand_connections_one_after_another_leave_no_growth) {
  constexpr std::size_t connections = 10'000;
  net::listener listener = co_await device().listen(std::string(GetParam().any_address));
  const auto meet = [&]() -> task<> {
    connected ends = co_await connect_to(listener);
    auto memory = co_await zeroed(pool(), 100);
    const auto open = co_await ends.server.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src);
    auto payload = co_await filled(pool(), 100, 1);
    co_await ends.client.write(payload, open.remote());
    co_await ends.client.send(std::move(payload));
    static_cast<void>(co_await ends.server.recv_or_throw());
    co_await when_all(ends.client.close(), ends.server.close());
  };
  const auto churn = [&](std::size_t count) -> task<> {
    for (std::size_t i = 0; i < count; ++i) co_await meet();
    for (int i = 0; i < 10; ++i) co_await settle();
  };
  co_await churn(connections / 10);
  const std::size_t descriptors = open_descriptors();
  const std::size_t heap = live_heap_bytes();
  co_await churn(connections);
  const std::size_t now = live_heap_bytes();
  std::printf("the heap has grown by %td bytes\n",
              static_cast<std::ptrdiff_t>(now) - static_cast<std::ptrdiff_t>(heap));
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(keys(), 0u);
  if (!sanitized) {
    EXPECT_LE(now, heap + 64 * kib);
  }
}

}  // namespace
}  // namespace weft::test

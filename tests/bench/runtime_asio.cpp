// SPDX-License-Identifier: Apache-2.0
// runtime_asio CASE COUNT: what runtime_cost does, with Asio's awaitable.
#include <asio.hpp>
#include <asio/experimental/channel.hpp>

#include <deque>

#include "count_allocations.hpp"

namespace {

using asio::awaitable;
using asio::detached;
using asio::use_awaitable;

[[gnu::noinline]] awaitable<std::uint64_t> value(std::uint64_t number) { co_return number; }
awaitable<void> sum(std::uint64_t count) {
  volatile std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) total = total + co_await value(i);
}

[[gnu::noinline]] awaitable<void> nothing() { co_return; }
awaitable<void> spawn_and_join(std::uint64_t count) {
  const auto home = co_await asio::this_coro::executor;
  for (std::uint64_t i = 0; i < count; ++i) co_await asio::co_spawn(home, nothing(), use_awaitable);
}

using hop = asio::experimental::channel<void(asio::error_code, std::uint64_t)>;
awaitable<void> send_all(hop& to, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) co_await to.async_send(asio::error_code(), i, use_awaitable);
}
awaitable<void> receive_all(hop& from, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) co_await from.async_receive(use_awaitable);
}

using socket_type = asio::local::stream_protocol::socket;
constexpr std::size_t request_bytes = 64;
using room = std::array<std::byte, 2 * request_bytes>;  // as in runtime_cost
awaitable<void> echo(socket_type& end, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await end.async_read_some(asio::buffer(bytes), use_awaitable);
    co_await end.async_write_some(asio::buffer(bytes, request_bytes), use_awaitable);
  }
}
awaitable<void> ask(socket_type& end, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await end.async_write_some(asio::buffer(bytes, request_bytes), use_awaitable);
    co_await end.async_read_some(asio::buffer(bytes), use_awaitable);
  }
}

template <awaitable<void> (*Work)(std::uint64_t)>
void alone(std::uint64_t count) {
  asio::io_context home(1);
  asio::co_spawn(home, Work(count), detached);
  home.run();
}
constexpr auto await = alone<sum>;
constexpr auto spawn = alone<spawn_and_join>;

void channel(std::uint64_t count) {
  asio::io_context home(1);
  hop between(home, 1);
  asio::co_spawn(home, receive_all(between, count), detached);
  asio::co_spawn(home, send_all(between, count), detached);
  home.run();
}

void timer(std::uint64_t count) {
  asio::io_context home(1);
  std::deque<asio::steady_timer> timers;
  const auto start = std::chrono::steady_clock::now() + std::chrono::hours(1);
  for (std::uint64_t i = 0; i < count; ++i) {
    timers.emplace_back(home, start + std::chrono::microseconds(i * 7919 % count));
    timers.back().async_wait([](asio::error_code) {});
  }
  for (asio::steady_timer& each : timers) each.cancel();
  home.run();
}

void socket(std::uint64_t count) {
  asio::io_context home(1);
  socket_type client(home);
  socket_type server(home);
  asio::local::connect_pair(client, server);
  asio::co_spawn(home, echo(server, count), detached);
  asio::co_spawn(home, ask(client, count), detached);
  home.run();
}

}  // namespace

int main(int argc, char** argv) {
  const weft::bench::cases known = {
      {"asio_await", await}, {"asio_channel", channel}, {"asio_socket", socket},
      {"asio_spawn", spawn}, {"asio_timer", timer},
  };
  return weft::bench::run_case(argc, argv, known);
}

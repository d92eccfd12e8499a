// SPDX-License-Identifier: Apache-2.0
// An ordinary Asio server that answers TCP clients, and RDMA clients from the same io_context:
// `asio_echo serve`, and `asio_echo say [tcp://]HOST:PORT TEXT...` in another terminal. With several threads, RDMA
// clients are shared out among them.
#include <weft/net/asio.hpp>
#include <weft/net/stream_listener.hpp>
#include <weft/runtime/line_limit.hpp>
#include <weft/weft.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;

// The usual part of a server for sockets, which does not know the kind of its stream.
template <class Stream>
awaitable<void> echo(Stream peer) {
  std::array<char, 16384> room;
  for (;;) {
    std::error_code end;
    const std::size_t count =
        co_await peer.async_read_some(asio::buffer(room), asio::redirect_error(use_awaitable, end));
    if (end == asio::error::eof) co_return;
    if (end) throw std::system_error(end);
    co_await asio::async_write(peer, asio::buffer(room, count), use_awaitable);
  }
}

// One peer's failure is reported, and the others go on. A flood of failures is counted.
void report(const std::exception_ptr& failure) {
  static weft::line_limit limit;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& why) {
    const auto left_out = limit.next(weft::clock::steady().now());
    if (!left_out) return;
    if (*left_out != 0)
      std::fprintf(stderr, "asio_echo: %ju more failures were not written\n", std::uintmax_t{*left_out});
    std::fprintf(stderr, "asio_echo: a peer: %s\n", why.what());
  }
}

// The failure of one accept concerns no other peer. Those that come while the process has no descriptor wait in the
// backlog until it has.
awaitable<void> serve_tcp(tcp::acceptor acceptor) {
  asio::steady_timer pause(acceptor.get_executor());
  std::error_code told;
  for (;;) {
    std::error_code failure;
    auto peer = co_await acceptor.async_accept(asio::redirect_error(use_awaitable, failure));
    if (!failure) {
      asio::co_spawn(acceptor.get_executor(), echo(std::move(peer)), report);
      continue;
    }
    if (failure == asio::error::operation_aborted) throw std::system_error(failure);
    if (failure != told) std::fprintf(stderr, "asio_echo: accept over TCP: %s\n", failure.message().c_str());
    told = failure;
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(use_awaitable);
  }
}

// The part that is new.
awaitable<void> greet(weft::asio_host& host, weft::net::stream_request request) {
  auto peer = co_await host.async(request.accept(), use_awaitable);
  co_await echo(std::move(peer));
}
// A thread with an io_context and an executor of its own: what is accepted there stays there.
struct worker {
  asio::io_context io{1};
  weft::asio_host host{io};
  asio::executor_work_guard<asio::io_context::executor_type> open{io.get_executor()};
  std::thread thread{[this] { io.run(); }};

  worker() = default;
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;
  ~worker() {
    open.reset();
    asio::post(io, [this] { host.request_stop(); });
    thread.join();
  }
};
using workers = std::vector<std::unique_ptr<worker>>;

awaitable<void> serve_weft(weft::asio_host& host, weft::net::stream_listener& listener, workers& others) {
  const auto home = co_await asio::this_coro::executor;
  for (std::size_t turn = 0;; ++turn) {
    auto request = co_await host.async(listener.next(), use_awaitable);
    if (!request) co_return;
    if (others.empty()) {
      asio::co_spawn(home, greet(host, std::move(*request)), report);
    } else {  // a request belongs to no executor until it is accepted
      worker& next = *others[turn % others.size()];
      asio::co_spawn(next.io, greet(next.host, std::move(*request)), report);
    }
  }
}

awaitable<void> serve(weft::asio_host& host, weft::net::device& device, asio::ip::port_type port, std::string address,
                      workers& others) {
  using namespace asio::experimental::awaitable_operators;
  const auto home = co_await asio::this_coro::executor;
  tcp::acceptor acceptor(home, {asio::ip::address_v4::loopback(), port});
  std::printf("listening on 127.0.0.1:%u over TCP\n", acceptor.local_endpoint().port());
  auto listener = co_await host.async(weft::net::stream_listener::listen(device, address), use_awaitable);
  std::printf("and on %s over %s\n", std::string(listener->address()).c_str(), std::string(device.name()).c_str());
  std::fflush(stdout);
  co_await (serve_tcp(std::move(acceptor)) && serve_weft(host, *listener, others));
}

awaitable<void> say(weft::asio_host& host, weft::net::device& device, std::string address, std::string text) {
  auto server = co_await host.async(weft::net::stream::connect(device, address), use_awaitable);
  text += '\n';
  co_await asio::async_write(server, asio::buffer(text), use_awaitable);
  std::string answer;
  co_await asio::async_read_until(server, asio::dynamic_buffer(answer), '\n', use_awaitable);
  std::fputs(answer.c_str(), stdout);
}

// All of it, and no more than `most`.
std::optional<unsigned> number_in(std::string_view text, unsigned most) {
  unsigned value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = weft::net::device::open("auto");  // an RDMA NIC where there is one, else shared memory and iWARP
  asio::io_context io(1);
  weft::asio_host host(io);  // weft's executor lives in the io_context
  workers others;
  awaitable<void> body;
  const auto port = number_in(argc >= 4 ? argv[2] : "7473", 65535);
  const auto threads = number_in(argc == 5 ? argv[4] : "1", 1000);
  if (verb == "serve" && (argc == 2 || argc == 4 || argc == 5) && port && threads) {
    for (unsigned i = 1; i < *threads; ++i) others.push_back(std::make_unique<worker>());
    body = serve(host, device, static_cast<asio::ip::port_type>(*port), argc >= 4 ? argv[3] : "127.0.0.1:7471", others);
  } else if (verb == "say" && argc >= 4) {
    std::string text = argv[3];
    for (int i = 4; i < argc; ++i) text.append(" ").append(argv[i]);
    body = say(host, device, argv[2], std::move(text));
  } else {
    std::fputs(
        "usage: asio_echo serve [TCP_PORT HOST:PORT [THREADS]]\n       asio_echo say [tcp://]HOST:PORT TEXT...\n",
        stderr);
    return 2;
  }
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(body), [&](std::exception_ptr what) { failure = std::move(what); });
  io.run();
  if (failure) std::rethrow_exception(failure);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "asio_echo: %s\n", failure.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// An ordinary Asio server that answers TCP clients, and RDMA clients from the same io_context:
// `asio_echo serve`, and `asio_echo say [tcp://]HOST:PORT TEXT...` in another terminal.
#include <weft/net/asio.hpp>
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;

// What a server for sockets consists of anyway; it does not know which kind of stream this is.
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

// One peer's failure is reported, and the others go on.
void report(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "asio_echo: a peer: %s\n", why.what());
  }
}

awaitable<void> serve_tcp(tcp::acceptor acceptor) {
  for (;;) {
    auto peer = co_await acceptor.async_accept(use_awaitable);
    asio::co_spawn(acceptor.get_executor(), echo(std::move(peer)), report);
  }
}

// The part that is new.
awaitable<void> greet(weft::asio_host& host, weft::net::stream_request request) {
  auto peer = co_await host.async(request.accept(), use_awaitable);
  co_await echo(std::move(peer));
}
awaitable<void> serve_weft(weft::asio_host& host, weft::net::device& device, std::string address) {
  auto listener = co_await host.async(weft::net::stream_listener::listen(device, address), use_awaitable);
  std::printf("and on %s over %s\n", std::string(listener->address()).c_str(), std::string(device.name()).c_str());
  std::fflush(stdout);
  const auto home = co_await asio::this_coro::executor;
  while (auto request = co_await host.async(listener->next(), use_awaitable)) {
    asio::co_spawn(home, greet(host, std::move(*request)), report);
  }
}

awaitable<void> serve(weft::asio_host& host, weft::net::device& device, std::string tcp_port, std::string address) {
  using namespace asio::experimental::awaitable_operators;
  const auto home = co_await asio::this_coro::executor;
  const auto port = static_cast<asio::ip::port_type>(std::stoul(tcp_port));
  tcp::acceptor acceptor(home, {asio::ip::address_v4::loopback(), port});
  std::printf("listening on 127.0.0.1:%u over TCP\n", acceptor.local_endpoint().port());
  co_await (serve_tcp(std::move(acceptor)) && serve_weft(host, device, address));
}

awaitable<void> say(weft::asio_host& host, weft::net::device& device, std::string address, std::string text) {
  auto server = co_await host.async(weft::net::stream::connect(device, address), use_awaitable);
  text += '\n';
  co_await asio::async_write(server, asio::buffer(text), use_awaitable);
  std::string answer;
  co_await asio::async_read_until(server, asio::dynamic_buffer(answer), '\n', use_awaitable);
  std::fputs(answer.c_str(), stdout);
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = weft::net::device::open("auto");  // an RDMA NIC where there is one, else iWARP in user space
  asio::io_context io(1);
  weft::asio_host host(io);  // weft's executor lives in the io_context
  awaitable<void> body;
  if (verb == "serve" && (argc == 2 || argc == 4)) {
    body = serve(host, device, argc == 4 ? argv[2] : "7473", argc == 4 ? argv[3] : "127.0.0.1:7471");
  } else if (verb == "say" && argc >= 4) {
    std::string text = argv[3];
    for (int i = 4; i < argc; ++i) text.append(" ").append(argv[i]);
    body = say(host, device, argv[2], std::move(text));
  } else {
    std::fputs("usage: asio_echo serve [TCP_PORT HOST:PORT]\n       asio_echo say [tcp://]HOST:PORT TEXT...\n", stderr);
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

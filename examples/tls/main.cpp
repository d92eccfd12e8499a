// SPDX-License-Identifier: Apache-2.0
// TLS over weft, by Asio: `tls serve FILE`, and `tls say FILE HOST:PORT TEXT...` in another terminal.
#include <weft/net/asio.hpp>
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/ssl.hpp>
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include <common/network.hpp>
#include <tls/certificate.hpp>

namespace {

using asio::awaitable;
using asio::use_awaitable;
using secure_stream = asio::ssl::stream<weft::net::stream>;

constexpr const char* server_name = "weft.example";
constexpr std::size_t longest_line = 4096;

// From here on it is Asio's TLS, which does not know on what it runs.
awaitable<void> answer(secure_stream& peer) {
  co_await peer.async_handshake(asio::ssl::stream_base::server, use_awaitable);
  std::string line;
  const std::size_t size =
      co_await asio::async_read_until(peer, asio::dynamic_buffer(line, longest_line), '\n', use_awaitable);
  co_await asio::async_write(peer, asio::buffer(line.data(), size), use_awaitable);
  co_await peer.async_shutdown(use_awaitable);
}

// Why it failed; null if it did not. The first of two to end is the first that does not throw, for Asio's `||`.
awaitable<std::exception_ptr> failure_of(awaitable<void> what) {
  try {
    co_await std::move(what);
  } catch (const std::exception&) {
    co_return std::current_exception();
  }
  co_return nullptr;
}

// One peer's whole life. One that is silent, be it in the handshake, would stay for ever.
awaitable<void> serve_peer(weft::net::stream accepted, asio::ssl::context& tls, std::chrono::milliseconds patience) {
  using namespace asio::experimental::awaitable_operators;
  secure_stream peer(std::move(accepted), tls);
  asio::steady_timer limit(co_await asio::this_coro::executor, patience);
  const auto first = co_await (failure_of(answer(peer)) || limit.async_wait(use_awaitable));
  if (first.index() == 1) throw std::runtime_error("it took too long");
  if (std::get<0>(first)) std::rethrow_exception(std::get<0>(first));
}

awaitable<void> serve(weft::asio_host& host, weft::net::device& device, const char* file, std::string address,
                      std::chrono::milliseconds patience) {
  const tls::identity mine = tls::make_identity(server_name);
  asio::ssl::context tls(asio::ssl::context::tls_server);
  tls.use_certificate_chain(asio::buffer(mine.certificate));
  tls.use_private_key(asio::buffer(mine.key), asio::ssl::context::pem);
  if (!(std::ofstream(file) << mine.certificate).flush())
    throw std::runtime_error(fmt::format("cannot write {}", file));

  const weft::net::listener_options strangers{.max_connections = 1000};
  auto listener = co_await host.async(weft::net::stream_listener::listen(device, address, strangers), use_awaitable);
  fmt::print("listening on {} over {}\n", listener->address(), device.name());
  std::fflush(stdout);
  const auto home = co_await asio::this_coro::executor;
  while (auto peer = co_await host.async(listener->accept(), use_awaitable)) {
    const std::string who(peer->peer());
    asio::co_spawn(home, serve_peer(std::move(*peer), tls, patience), [who](std::exception_ptr failure) {
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const std::exception& why) {  // this peer's trouble, and nobody else's
        common::complain("tls", who, why.what());
      }
    });
  }
}

awaitable<void> say(weft::asio_host& host, weft::net::device& device, const char* file, std::string address,
                    std::string text) {
  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.load_verify_file(file);
  tls.set_verify_mode(asio::ssl::verify_peer);
  tls.set_verify_callback(asio::ssl::host_name_verification(server_name));

  secure_stream server(co_await host.async(weft::net::stream::connect(device, address), use_awaitable), tls);
  co_await server.async_handshake(asio::ssl::stream_base::client, use_awaitable);
  text += '\n';
  co_await asio::async_write(server, asio::buffer(text), use_awaitable);
  std::string answer;
  co_await asio::async_read_until(server, asio::dynamic_buffer(answer, longest_line), '\n', use_awaitable);
  fmt::print("{}", answer);
  fmt::print("({}, {})\n", SSL_get_version(server.native_handle()), SSL_get_cipher(server.native_handle()));
}

void run(asio::io_context& io, awaitable<void> body) {
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(body), [&](std::exception_ptr what) { failure = std::move(what); });
  io.run();
  if (failure) std::rethrow_exception(failure);
}

std::string join(std::span<char*> words) {
  std::string text = words.front();
  for (const char* const word : words.subspan(1)) text.append(" ").append(word);
  return text;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = weft::net::device::open("auto");
  asio::io_context io(1);
  weft::asio_host host(io);
  if (verb == "serve" && argc >= 3 && argc <= 5) {
    const std::chrono::duration<double> patience(argc == 5 ? std::stod(argv[4]) : 30);
    run(io, serve(host, device, argv[2], argc >= 4 ? argv[3] : "127.0.0.1:7472",
                  std::chrono::duration_cast<std::chrono::milliseconds>(patience)));
  } else if (verb == "say" && argc >= 5) {
    run(io, say(host, device, argv[2], argv[3], join(words.subspan(4))));
  } else {
    std::fputs(
        "usage: tls serve CERTIFICATE_FILE [HOST:PORT [SECONDS]]\n"
        "       tls say CERTIFICATE_FILE HOST:PORT TEXT...\n",
        stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  fmt::print(stderr, "tls: {}\n", failure.what());
  return 1;
}

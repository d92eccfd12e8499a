// SPDX-License-Identifier: Apache-2.0
// http_beast: what `http serve` of examples/http answers to GET /, by Boost.Beast and coroutines of Boost.Asio, with
// its patience for each request and each answer. Prints its port.
#include <cstdio>

#include "kit/standard.hpp"
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr std::chrono::seconds patience(30);

http::response<http::string_body> answer(const http::request<http::string_body>& request) {
  const bool known = request.method() == http::verb::get && request.target() == "/";
  http::response<http::string_body> words(known ? http::status::ok : http::status::not_found, request.version());
  words.set(http::field::content_type, "text/plain");
  words.keep_alive(request.keep_alive());
  words.body() = known ? "It works.\n" : "There is no such page.\n";
  words.prepare_payload();
  return words;
}

asio::awaitable<void> serve(beast::tcp_stream peer) try {
  beast::flat_buffer bytes;
  for (bool more = true; more;) {
    peer.expires_after(patience);
    http::request<http::string_body> request;
    co_await http::async_read(peer, bytes, request, asio::use_awaitable);
    http::response<http::string_body> words = answer(request);
    more = words.keep_alive();
    peer.expires_after(patience);
    co_await http::async_write(peer, words, asio::use_awaitable);
  }
} catch (const std::exception&) {  // the end of the stream, as Beast tells of it
}

asio::awaitable<void> accept_all(tcp::acceptor& acceptor) {
  for (;;) {
    tcp::socket peer = co_await acceptor.async_accept(asio::use_awaitable);
    peer.set_option(tcp::no_delay(true));
    asio::co_spawn(acceptor.get_executor(), serve(beast::tcp_stream(std::move(peer))), asio::detached);
  }
}

}  // namespace

int main() try {
  asio::io_context home(1);
  tcp::acceptor acceptor(home, {asio::ip::address_v4::loopback(), 0});
  std::printf("%d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  asio::co_spawn(home, accept_all(acceptor), asio::detached);
  home.run();
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "http_beast: %s\n", why.what());
  return 1;
}

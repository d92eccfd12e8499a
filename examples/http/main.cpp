// SPDX-License-Identifier: Apache-2.0
// HTTP over weft: `http serve ADDRESS...`, and `http get ADDRESS PATH...` in another terminal.
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <http/message_parser.hpp>

using namespace weft;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

// Reads until a message is complete; false if the peer has sent all of its own. `rest` are bytes that came behind the
// message before.
task<bool> read_message(net::stream& peer, http::message_parser& parser, net::received_bytes& rest,
                        std::size_t& taken) {
  while (!parser.complete()) {
    if (taken == rest.bytes().size()) {
      rest = co_await peer.read_bytes();  // where it was received: no copy
      taken = 0;
      if (rest.empty()) {
        parser.consume({});
        if (parser.begun() && !parser.complete()) throw http::bad_message("the stream ended in a message");
        co_return parser.complete();
      }
    }
    taken += parser.consume(rest.bytes().subspan(taken));
  }
  co_return true;
}

std::string answer_with(std::string_view status, std::string_view body, bool with_body, bool keep_alive) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: {}\r\n\r\n{}",
                     status, body.size(), keep_alive ? "keep-alive" : "close", with_body ? body : "");
}

std::string answer(const http::message_parser& request) {
  const bool head = request.method() == "HEAD";
  const bool keep = request.keep_alive();
  if (request.target() == "/echo" && request.method() == "POST") {
    return answer_with("200 OK", request.body(), true, keep);
  }
  if (request.method() != "GET" && !head)
    return answer_with("405 Method Not Allowed", "GET, HEAD, POST /echo\n", true, keep);
  if (request.target() == "/") return answer_with("200 OK", "It works.\n", !head, keep);
  if (request.target() == "/large") return answer_with("200 OK", std::string(1 << 20, 'x'), !head, keep);
  return answer_with("404 Not Found", "There is no such page.\n", !head, keep);
}

// One peer's whole life.
task<> serve_peer(net::stream_request request) {
  auto peer = co_await request.accept();
  http::message_parser parser(http::message_parser::kind::request);
  net::received_bytes rest;
  std::size_t taken = 0;
  std::string refusal;
  try {
    while (co_await read_message(peer, parser, rest, taken)) {
      const std::string words = answer(parser);
      const bool last = !parser.keep_alive();
      co_await peer.write(bytes_of(words));
      if (last) break;
      parser.next();
    }
  } catch (const http::bad_message& why) {
    refusal = answer_with("400 Bad Request", fmt::format("{}\n", why.what()), true, false);
  }
  if (!refusal.empty()) co_await peer.write(bytes_of(refusal));
  co_await peer.close();
}

task<> serve_at(net::device& device, std::string address) {
  auto listener = co_await net::stream_listener::listen(device, address);
  fmt::print("listening on {}\n", listener.address());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto request = co_await listener.next()) peers.spawn(serve_peer(std::move(*request)));
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

task<> serve(net::device& device, std::vector<std::string> addresses) {
  std::vector<task<>> all;
  all.reserve(addresses.size());
  for (std::string& address : addresses) all.push_back(serve_at(device, std::move(address)));
  co_await when_all(std::move(all));
}

// All requests go out at once, and the answers come in their order.
task<> get(net::device& device, std::string address, std::vector<std::string> paths) {
  auto server = co_await net::stream::connect(device, address);
  std::string requests;
  for (const std::string& path : paths) requests += fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, address);
  co_await server.write(bytes_of(requests));
  http::message_parser parser(http::message_parser::kind::response);
  net::received_bytes rest;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!co_await read_message(server, parser, rest, taken)) throw http::bad_message("the server has closed");
    if (parser.status() != 200) fmt::print("{}: ", parser.status());
    fmt::print("{}", parser.body());
    parser.next();
  }
  co_await server.close();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  auto device = net::device::open("auto");
  executor ex;
  if (words.size() >= 2 && words[0] == "serve") {
    ex.run(serve(device, {words.begin() + 1, words.end()}));
  } else if (words.size() >= 3 && words[0] == "get") {
    ex.run(get(device, words[1], {words.begin() + 2, words.end()}));
  } else {
    std::fputs("usage: http serve [tcp://]HOST:PORT...\n       http get [tcp://]HOST:PORT PATH...\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  fmt::print(stderr, "http: {}\n", failure.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// HTTP over weft: `http serve ADDRESS...`, and `http get ADDRESS PATH...` in another terminal.
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <common/program.hpp>
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
      if (parser.expects_continue()) {
        parser.was_continued();
        co_await peer.write(bytes_of("HTTP/1.1 100 Continue\r\n\r\n"));
      }
      rest = {};                          // who waits holds none of the pool's memory
      rest = co_await peer.read_bytes();  // where it was received: no copy
      taken = 0;
      if (rest.empty()) {
        parser.consume({});
        if (parser.begun() && !parser.complete())
          throw http::bad_message("the stream ended in the middle of a message");
        co_return parser.complete();
      }
    }
    taken += parser.consume(rest.bytes().subspan(taken));
  }
  co_return true;
}

// A peer that is silent in the middle of a request is told; one that has not begun one is done.
task<bool> read_in_time(duration patience, net::stream& peer, http::message_parser& parser, net::received_bytes& rest,
                        std::size_t& taken) {
  try {
    co_return co_await with_timeout(patience, read_message(peer, parser, rest, taken));
  } catch (const error& why) {
    if (why.code() != errc::timed_out) throw;
    if (parser.begun()) throw http::bad_message("408 Request Timeout", "the request took too long");
    co_return false;
  }
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

// A peer that is told why must get to read it: a close with unread input would be a reset. RFC 9112 section 9.6.
task<> take_what_still_comes(net::stream& peer) {
  co_await peer.shutdown_send();
  for (bool more = true; more;) {
    const net::received_bytes unwanted = co_await peer.read_bytes();
    more = !unwanted.empty();
  }
}

task<> refuse(net::stream& peer, std::string answer, duration patience) {
  try {
    co_await with_timeout(patience, peer.write(bytes_of(answer)));
    co_await with_timeout(patience, take_what_still_comes(peer));
  } catch (const error& why) {
    if (why.code() == errc::canceled) throw;  // else it has gone, or does not stop
  }
}

// One peer's whole life. It has `patience` for each request, and for taking each answer.
task<> serve_peer(net::stream peer, duration patience) {
  http::message_parser parser(http::message_parser::kind::request);
  net::received_bytes rest;
  std::size_t taken = 0;
  std::string refusal;
  try {
    while (co_await read_in_time(patience, peer, parser, rest, taken)) {
      const std::string words = answer(parser);
      const bool last = !parser.keep_alive();
      co_await with_timeout(patience, peer.write(bytes_of(words)));
      if (last) break;
      parser.next();
    }
  } catch (const http::bad_message& why) {
    refusal = answer_with(why.status, fmt::format("{}\n", why.what()), true, false);
  }
  if (!refusal.empty()) co_await refuse(peer, std::move(refusal), patience);
  co_await peer.close();
}

task<> serve_at(net::device& device, std::string address, net::listener_options how, duration patience) {
  auto listener = co_await net::stream_listener::listen(device, address, how);
  fmt::print("listening on {}\n", listener.address());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(serve_peer(std::move(*peer), patience));
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

task<> serve(net::device& device, std::vector<std::string> addresses, net::listener_options how, duration patience) {
  std::vector<task<>> all;
  all.reserve(addresses.size());
  for (std::string& address : addresses) all.push_back(serve_at(device, std::move(address), how, patience));
  co_await when_all(std::move(all));
}

// What a server is called behind the scheme; nothing for a path of a file.
std::string_view host_in(std::string_view address) noexcept {
  const std::size_t scheme = address.find("://");
  if (scheme != std::string_view::npos) address.remove_prefix(scheme + 3);
  return address.find('/') == std::string_view::npos ? address : std::string_view();
}

// All requests go out at once, and the answers come in their order.
task<> get(net::device& device, std::string address, std::vector<std::string> paths) {
  auto server = co_await net::stream::connect(device, address);
  std::string requests;
  for (const std::string& path : paths)
    requests += fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, host_in(address));
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

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("HTTP over weft: addresses are HOST:PORT, or tcp://HOST:PORT for plain TCP", "http");
  app.require_subcommand(1);
  std::vector<std::string> addresses;
  double seconds = 30;
  net::listener_options how;
  how.max_connections = 1000;
  auto* const serving = app.add_subcommand("serve", "answer requests");
  serving->add_option("--patience", seconds, "seconds that a peer may take for a request, or for taking an answer")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  common::add_value(*serving, "--max-connections", how.max_connections,
                    "at a time, of each address; those beyond are turned away", "COUNT")
      .check(CLI::Range(1, 1'000'000));
  serving->add_option("address", addresses, "where to listen")->required();
  std::string server;
  std::vector<std::string> paths;
  auto* const getting = app.add_subcommand("get", "fetch pages, and print them");
  getting->add_option("address", server, "the server")->required();
  getting->add_option("path", paths, "of a page: /")->required();
  return common::run_program(app, argc, argv, [&] {
    auto device = net::device::open("auto");
    executor ex;
    if (*serving) {
      ex.run(serve(device, addresses, how, common::in_seconds<duration>(seconds)));
    } else {
      ex.run(get(device, server, paths));
    }
    return common::success;
  });
}

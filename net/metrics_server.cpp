// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device.hpp>
#include <weft/net/metrics_server.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <span>

namespace weft::net {
namespace {

constexpr std::size_t max_request_bytes = 8192;

// The first line and the fields of a request, up to the empty line. Of the fields, only the number of Host fields
// matters here, and a request for metrics has no content, so a parser of HTTP would be more than is needed.
struct request_head {
  std::array<char, max_request_bytes> room;
  std::size_t size = 0;

  [[nodiscard]] std::string_view text() const noexcept { return {room.data(), size}; }
  [[nodiscard]] bool complete() const noexcept { return text().find("\r\n\r\n") != std::string_view::npos; }
  [[nodiscard]] std::span<std::byte> rest() noexcept { return std::as_writable_bytes(std::span(room)).subspan(size); }
};

// Reads the head of a request. False if the client closes before the end of the head, or the head is too long.
task<bool> read_head(stream& client, request_head& head) {
  while (!head.complete()) {
    if (head.size == head.room.size()) co_return false;
    const std::size_t count = co_await client.read_some(head.rest());
    if (count == 0) co_return false;
    head.size += count;
  }
  co_return true;
}

// The present time in the form of RFC 9110 section 5.6.7: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string date_now() {
  constexpr std::array<std::string_view, 7> days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<std::string_view, 12> months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const auto today = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(today);
  const std::chrono::hh_mm_ss time(now - today);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", days[std::chrono::weekday(today).c_encoding()],
                     unsigned(date.day()), months[unsigned(date.month()) - 1], int(date.year()), time.hours().count(),
                     time.minutes().count(), time.seconds().count());
}

std::string respond(std::string_view status, std::string_view type, std::string_view body, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nDate: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
      date_now(), type, body.size(), status.starts_with("405") ? "Allow: GET, HEAD\r\n" : "", with_body ? body : "");
}

std::string refuse(std::string_view status, std::string_view why, bool with_body = true) {
  return respond(status, "text/plain; charset=utf-8", why, with_body);
}

// Of "METHOD SP TARGET SP VERSION" (RFC 9112 section 3): the method, and the target's path without its query.
struct request_line {
  std::string_view method;
  std::string_view path;
};

// Counts the Host fields: a request of HTTP/1.1 has exactly one, and no request has more (RFC 9112 section 3.2).
std::size_t count_hosts(std::string_view head) noexcept {
  constexpr std::string_view name = "\r\nhost:";
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  std::size_t count = 0;
  for (const char* at = head.begin();; ++count, ++at) {
    at = std::search(at, head.end(), name.begin(), name.end(), same);
    if (at == head.end()) return count;
  }
}

std::optional<request_line> parse(std::string_view head) noexcept {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == 0 || first == std::string_view::npos || last == first) return std::nullopt;
  const std::string_view version = line.substr(last + 1);
  const std::size_t hosts = count_hosts(head.substr(0, head.find("\r\n\r\n")));
  if (hosts > 1 || (hosts == 0 && version != "HTTP/1.0")) return std::nullopt;
  if (!version.starts_with("HTTP/1.")) return std::nullopt;
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.starts_with("http://")) target.remove_prefix(std::min(target.find('/', 7), target.size()));
  if (!target.starts_with('/') || target.find(' ') != std::string_view::npos) return std::nullopt;
  return request_line{line.substr(0, first), target.substr(0, target.find('?'))};
}

// Ends the output, then reads and drops a limited amount of input: a close with unread input would be a reset, which
// can overtake the answer (RFC 9112 section 9.6).
task<> take_what_still_comes(stream& client) {
  co_await client.shutdown_send();
  std::array<std::byte, 512> unwanted;
  for (std::size_t taken = 0; taken < 16 * max_request_bytes;) {
    const std::size_t count = co_await client.read_some(unwanted);
    if (count == 0) co_return;
    taken += count;
  }
}

task<> finish(stream& client, std::string_view response) {
  co_await client.write(std::as_bytes(std::span(response)));
  co_await take_what_still_comes(client);
}

}  // namespace

metrics_server::metrics_server(stream_listener listener, metrics_server_options options) noexcept
    : listener_(std::move(listener)), options_(options) {}

task<metrics_server> metrics_server::listen(device& through, std::string address, metrics_server_options options) {
  listener_options narrow;
  narrow.max_connections = options.max_connections;
  auto listener = co_await stream_listener::listen(through, std::move(address), narrow);
  co_return metrics_server(std::move(listener), options);
}

std::string metrics_server::answer(std::string_view request, source from) {
  const auto asked = parse(request);
  if (!asked) return refuse("400 Bad Request", "This is no request of HTTP/1.1.\n");
  const bool with_body = asked->method != "HEAD";
  if (with_body && asked->method != "GET") return refuse("405 Method Not Allowed", "Only GET and HEAD are served.\n");
  if (asked->path != "/metrics") return refuse("404 Not Found", "The metrics are at /metrics.\n", with_body);
  try {
    metrics all;
    from.add_to(from.what, all);
    return respond("200 OK", "text/plain; version=0.0.4; charset=utf-8", all.text(), with_body);
  } catch (const std::exception& why) {
    return refuse("500 Internal Server Error", fmt::format("The metrics could not be collected: {}\n", why.what()),
                  with_body);
  }
}

// Answers one client. Of all weft::errors, only errc::canceled is passed on: any other concerns this client alone,
// which has gone away, for example, or is too slow.
task<> metrics_server::serve_client(stream_request request, source from, std::chrono::milliseconds patience) {
  try {
    auto client = co_await request.accept();
    request_head head;
    std::string response;
    if (co_await with_timeout(patience, read_head(client, head))) {
      response = answer(head.text(), from);
    } else if (head.size == head.room.size()) {
      response = refuse("431 Request Header Fields Too Large", "The request has more than 8192 bytes.\n");
    }
    if (!response.empty()) co_await with_timeout(patience, finish(client, response));
    co_await client.close();
  } catch (const error& why) {
    if (why.code() == errc::canceled) throw;
  }
}

task<> metrics_server::serve_source(source from) {
  const auto accept_all = [&](scope& clients) -> task<> {
    while (auto request = co_await listener_.next()) {
      clients.spawn(serve_client(std::move(*request), from, options_.patience), "metrics");
    }
  };
  co_await with_scope(on_failure::report, accept_all, "metrics");
}

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
// What clients of a metrics_server are told, right or wrong.
#include <weft/net/metrics_server.hpp>

#include <time.h>

#include <ctime>

#include "net/support.hpp"

namespace weft::test {
namespace {

constexpr std::string_view a_request = "GET /metrics HTTP/1.1\r\nHost: weft\r\nAccept: */*\r\n\r\n";

std::string as_text(const bytes& content) { return {reinterpret_cast<const char*>(content.data()), content.size()}; }

constexpr std::string_view date_field = "\r\nDate: ";

std::string without_date(std::string answer) {
  const std::size_t at = answer.find(date_field);
  if (at != std::string::npos) answer.erase(at, answer.find("\r\n", at + 2) - at);
  return answer;
}

// The clock that the server reads: time() may be a tick of the kernel behind it.
std::time_t now() { return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()); }

// What the field says, by the parser of the system; the beginning of the epoch if there is none, or no such date.
std::time_t date_in(const std::string& answer) {
  const std::size_t at = answer.find(date_field);
  if (at == std::string::npos) return 0;
  const std::string text = answer.substr(at + date_field.size(), answer.find("\r\n", at + 2) - at - date_field.size());
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text.size() == 29 && end == text.c_str() + 29 ? ::timegm(&parts) : 0;
}

class metrics_server_test : public net_test {
 protected:
  /// Runs `script(address)` beside a server.
  template <class Script>
  void beside_server(Script script, net::metrics_server_options options = {}) {
    run([&]() -> task<> {
      auto server = co_await net::metrics_server::listen(device(), "tcp://127.0.0.1:0", options);
      const auto collect = [&](metrics& all) { collect_(all); };
      const std::string address = address_of(server);
      const auto both = [&](scope& tasks) -> task<> {
        tasks.spawn(server.serve(collect));
        co_await script(address);
        server.close();
      };
      co_await with_scope(on_failure::stop_siblings, both);
    });
  }

  static std::string address_of(const net::metrics_server& server) {
    return std::string(server.address().substr(std::string_view("tcp://").size()));
  }

  static task<std::string> ask(std::string address, std::string_view request) {
    raw_peer client = raw_peer::connect(address);
    co_await client.send(text(request));
    client.finish();
    co_return as_text(co_await client.receive_rest());
  }

  std::uint64_t asked_ = 0;
  /// By default the only counter says how often the server was asked.
  std::function<void(metrics&)> collect_ = [this](metrics& all) {
    all.counter("asked_total", "Requests.", {}, ++asked_);
  };
};

#define TEST_F_BESIDE_SERVER(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (std::string address), beside_server(WEFT_SCRIPT))

TEST_F_BESIDE_SERVER(metrics_server_test, gives_each_request_the_numbers_of_that_moment) {
  EXPECT_EQ(without_date(co_await ask(address, a_request)),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 70\r\n"
            "Connection: close\r\n\r\n"
            "# HELP asked_total Requests.\n# TYPE asked_total counter\nasked_total 1\n");
  const std::string second = co_await ask(address, "GET /metrics?debug=1 HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(second.ends_with("asked_total 2\n")) << second;
  const std::string by_a_proxy = co_await ask(address, "GET http://weft:1/metrics HTTP/1.1\r\nhost: weft\r\n\r\n");
  EXPECT_TRUE(by_a_proxy.ends_with("asked_total 3\n")) << by_a_proxy;
}

TEST_F_BESIDE_SERVER(metrics_server_test, dates_every_answer_by_the_system_clock) {
  const std::time_t before = now();
  const std::string page = co_await ask(address, a_request);
  const std::string refusal = co_await ask(address, "GET / HTTP/1.0\r\n\r\n");
  const std::time_t after = now();
  for (const std::string& each : {page, refusal}) {
    EXPECT_GE(date_in(each), before) << each;
    EXPECT_LE(date_in(each), after) << each;
  }
}

TEST_F_BESIDE_SERVER(metrics_server_test, understands_a_request_that_comes_byte_by_byte) {
  raw_peer client = raw_peer::connect(address);
  for (const char each : a_request) {
    co_await client.send(text({&each, 1}));
    co_await settle();
  }
  client.finish();
  const std::string answer = as_text(co_await client.receive_rest());
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
}

TEST_F_BESIDE_SERVER(metrics_server_test, gives_HEAD_the_fields_without_the_page) {
  const std::string answer = co_await ask(address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("Content-Length: 70\r\nConnection: close\r\n\r\n")) << answer;
}

TEST_F_BESIDE_SERVER(metrics_server_test, answers_what_it_does_not_serve_with_the_status_that_says_so) {
  const std::pair<std::string, std::string_view> wrong[] = {
      {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404 Not Found"},
      {"GET /metricsandmore HTTP/1.0\r\n\r\n", "404 Not Found"},
      {"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"},
      {"GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n", "400 Bad Request"},
      {"GET /metrics HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", "400 Bad Request"},
      {"GET /metrics HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "400 Bad Request"},
      {"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"},
      {"GET /metrics\r\n\r\n", "400 Bad Request"},
      {"GET  HTTP/1.1\r\n\r\n", "400 Bad Request"},
      {" /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"},
      {"GET /a b HTTP/1.0\r\n\r\n", "400 Bad Request"},
      {"GET metrics HTTP/1.0\r\n\r\n", "400 Bad Request"},
      {"GET /metrics SMTP/1.1\r\n\r\n", "400 Bad Request"},
      {"\r\n\r\n", "400 Bad Request"},
      {std::string(8192, 'x'), "431 Request Header Fields Too Large"},
      {"GET /metrics HTTP/1.1\r\nCookie: " + std::string(20'000, 'x') + "\r\n\r\n",
       "431 Request Header Fields Too Large"},
  };
  for (const auto& [request, status] : wrong) {
    const std::string answer = co_await ask(address, request);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::string(status) + "\r\n")) << request << "\n" << answer;
  }
  EXPECT_EQ(asked_, 0U);
}

TEST_F(metrics_server_test, lets_go_of_clients_that_are_silent_and_of_those_that_go) {
  const net::metrics_server_options one{.max_connections = 1, .patience = 5s};
  const auto script = [this](std::string address) -> task<> {
    raw_peer silent = raw_peer::connect(address);
    co_await silent.send(text("GET /metr"));
    co_await settle();
    jump(6s);
    EXPECT_TRUE((co_await silent.receive_rest()).empty());
    raw_peer reader_of_nothing = raw_peer::connect(address);
    co_await reader_of_nothing.send(text(a_request));
    reader_of_nothing.reset();
    std::string answer;
    while (answer.empty()) answer = co_await ask(address, a_request);  // turned away until there is room
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  };
  beside_server(script, one);
}

TEST_F(metrics_server_test, a_stop_in_the_middle_of_a_request_ends_its_client_and_the_server) {
  run([&]() -> task<> {
    auto server = co_await net::metrics_server::listen(device(), "tcp://127.0.0.1:0");
    const auto collect = [](metrics&) {};
    const std::string address = address_of(server);
    raw_peer reading = raw_peer::connect(address);
    raw_peer answered = raw_peer::connect(address);
    const auto both = [&](scope& tasks) -> task<> {
      tasks.spawn(server.serve(collect));
      co_await reading.send(text("GET /metr"));
      co_await answered.send(text(a_request));  // and it does not close: the server waits for that
      co_await settle();
      tasks.request_stop();
    };
    co_await with_scope(on_failure::stop_siblings, both);
    EXPECT_TRUE((co_await reading.receive_rest()).empty());
    static_cast<void>(co_await answered.receive_rest());
  });
}

TEST_F_BESIDE_SERVER(metrics_server_test, says_why_the_metrics_could_not_be_collected) {
  collect_ = [](metrics&) { throw std::runtime_error("the disk is gone"); };
  const std::string answer = co_await ask(address, a_request);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500 Internal Server Error\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("The metrics could not be collected: the disk is gone\n")) << answer;
}

TEST_F_TASK(metrics_server_test, is_one_call_for_which_an_address_in_use_is_an_error) {
  auto first = co_await net::metrics_server::listen(device(), "tcp://127.0.0.1:0");
  const auto collect = [](metrics&) {};
  const std::string taken(first.address());
  EXPECT_TRUE(
      failed_with(co_await failure_of(net::serve_metrics(device(), taken, collect)), std::errc::address_in_use));
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/socket_address.hpp>

#include <netdb.h>

#include <future>

#include "runtime/support.hpp"

namespace weft {
namespace {

std::string why_refused(std::string_view text) {
  const std::optional<error> failure = test::failure_thrown_by([&] { return parse_host_and_port(text); });
  EXPECT_TRUE(test::failed_with(failure, errc::invalid_address)) << text;
  return test::words_of(failure);
}

TEST(host_and_port, takes_apart_what_users_write) {
  const auto expect = [](std::string_view text, std::string_view host, std::string_view port) {
    const host_and_port parts = parse_host_and_port(text);
    EXPECT_EQ(parts.host, host) << text;
    EXPECT_EQ(parts.port, port) << text;
  };
  expect("10.0.0.7:7471", "10.0.0.7", "7471");
  expect("[::1]:7471", "::1", "7471");
  expect("[fe80::1%eth0]:1", "fe80::1%eth0", "1");
  expect("storage-3:7471", "storage-3", "7471");
  expect(":7471", "", "7471");
  expect("[]:7471", "", "7471");
  expect("host:http", "host", "http");
  expect("host:65535", "host", "65535");
}

TEST(host_and_port, says_what_is_wrong_with_the_rest) {
  EXPECT_NE(why_refused("10.0.0.7").find("no port"), std::string::npos);
  EXPECT_NE(why_refused("").find("no port"), std::string::npos);
  EXPECT_NE(why_refused("host:").find("port is empty"), std::string::npos);
  EXPECT_NE(why_refused("::1:7471").find("in brackets"), std::string::npos);
  EXPECT_NE(why_refused("tcp://10.0.0.7:7471").find("scheme"), std::string::npos);
  EXPECT_EQ(why_refused("tcp://10.0.0.7:7471").find("brackets"), std::string::npos);
  EXPECT_NE(why_refused("[::1]").find("[IPv6 address]"), std::string::npos);
  EXPECT_NE(why_refused("[::1:7471").find("[IPv6 address]"), std::string::npos);
  EXPECT_NE(why_refused("host:65536").find("65535"), std::string::npos);
  EXPECT_NE(why_refused("host:184467440737095516160").find("65535"), std::string::npos);
}

TASK_TEST(resolve, yields_addresses_for_numbers_and_for_the_empty_host) {
  const auto four = co_await resolve("127.0.0.1:7471", false);
  EXPECT_EQ(four.at(0).to_string(), "127.0.0.1:7471");
  EXPECT_TRUE(four.at(0).is_loopback());
  EXPECT_EQ(four.at(0).port(), 7471);
  const auto six = co_await resolve("[::1]:1", false);
  EXPECT_EQ(six.at(0).to_string(), "[::1]:1");
  EXPECT_TRUE(six.at(0).is_loopback());
  const auto mapped = co_await resolve("[::ffff:127.0.0.1]:1", false);
  EXPECT_TRUE(mapped.at(0).is_loopback());
  const auto any = co_await resolve(":1", true);
  EXPECT_FALSE(any.at(0).is_loopback());
  const auto here = co_await resolve(":1", false);
  EXPECT_TRUE(here.at(0).is_loopback());
}

TEST(resolve, keeps_the_text_until_it_is_awaited) {
  const auto root = []() -> task<std::string> {
    auto pending = resolve(std::string("127.0.0.1:") + std::string("12345"), false);
    const std::string overwritten(64, 'x');
    const auto found = co_await std::move(pending);
    co_return found.at(0).to_string();
  };
  EXPECT_EQ(test::run(root()), "127.0.0.1:12345");
}

TEST(resolve, a_failure_names_the_address_and_the_resolvers_words) {
  const auto failure = test::run(test::failure_of(resolve("127.0.0.1:no-such-service", false)));
  EXPECT_TRUE(test::failed_with(failure, errc::invalid_address, "127.0.0.1:no-such-service"));
  EXPECT_GT(test::words_of(failure).size(), std::string_view("look up 127.0.0.1:no-such-service: ").size());
}

// A resolver that knows nobody, after a while or at once.
class strange_resolver final : public system_calls {
 public:
  int getaddrinfo(const char*, const char*, const addrinfo* hints, addrinfo**) noexcept override {
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    asked.set_value();
    answer.get_future().wait();
    return failure;
  }

  std::promise<void> asked;
  std::promise<void> answer;
  int failure = EAI_NONAME;
};

TEST(resolve, that_gets_no_answer_ends_when_it_is_stopped_and_not_later) {
  strange_resolver calls;
  worker_pool workers(1);
  executor home({.workers = &workers, .system_calls = &calls});
  const auto ask = []() -> task<> { EXPECT_EQ(co_await test::code_of(resolve("somewhere:1", false)), errc::canceled); };
  test::run_scope(home, [&](scope& tasks) -> task<> {
    tasks.spawn(ask());
    co_await yield();
    calls.asked.get_future().wait();
    tasks.request_stop();
  });  // it returns while the worker still waits
  calls.answer.set_value();
}

TEST(resolve, that_no_name_server_answers_is_worth_another_try_and_so_no_invalid_address) {
  strange_resolver calls;
  calls.failure = EAI_AGAIN;
  calls.answer.set_value();
  executor home({.system_calls = &calls});
  EXPECT_EQ(test::code_thrown_by([&] { home.run(resolve("somewhere:1", false)); }),
            std::errc::resource_unavailable_try_again);
}

TEST(resolve, of_numbers_asks_nobody) {
  class none_but_numbers final : public system_calls {
   public:
    int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) noexcept override {
      EXPECT_NE(hints->ai_flags & AI_NUMERICHOST, 0);
      return system_calls::getaddrinfo(host, service, hints, found);
    }
  } calls;
  executor home({.system_calls = &calls});
  for (const char* const text : {"127.0.0.1:1", "[::1]:1", ":1"}) EXPECT_FALSE(home.run(resolve(text, false)).empty());
}

TEST(resolve, for_listening_everywhere_prefers_the_address_that_takes_both_families) {
  const auto found = test::run(resolve(":1", true));
  EXPECT_EQ(found.front().to_string(), "[::]:1");
  EXPECT_EQ(found.back().to_string(), "0.0.0.0:1");
}

TEST(socket_address, a_link_local_one_keeps_its_scope) {
  const auto found = test::run(resolve("[fe80::1%lo]:7471", false));
  EXPECT_EQ(found.at(0).to_string(), "[fe80::1%lo]:7471");
}

TEST(socket_address, one_that_is_no_internet_address_says_so) {
  EXPECT_EQ(socket_address().to_string(), "an unknown address");
  EXPECT_EQ(socket_address().port(), 0);
  EXPECT_FALSE(socket_address().is_loopback());
}

}  // namespace
}  // namespace weft

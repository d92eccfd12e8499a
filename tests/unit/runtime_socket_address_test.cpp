// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/socket_address.hpp>

#include <gtest/gtest.h>

#include <string>

#include "runtime_support.hpp"

namespace weft {
namespace {

std::string why_refused(std::string_view text) {
  try {
    static_cast<void>(parse_host_and_port(text));
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::invalid_address);
    return failure.what();
  }
  return "it was taken";
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
  EXPECT_NE(why_refused("[::1]").find("[IPv6 address]"), std::string::npos);
  EXPECT_NE(why_refused("[::1:7471").find("[IPv6 address]"), std::string::npos);
  EXPECT_NE(why_refused("host:65536").find("65535"), std::string::npos);
  EXPECT_NE(why_refused("host:184467440737095516160").find("65535"), std::string::npos);
}

TEST(resolve, yields_addresses_for_numbers_and_for_the_empty_host) {
  const auto root = []() -> task<> {
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
  };
  test::run(root());
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
  const auto root = []() -> task<> { static_cast<void>(co_await resolve("127.0.0.1:no-such-service", false)); };
  try {
    test::run(root());
    FAIL() << "no exception";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::invalid_address);
    EXPECT_NE(std::string_view(failure.what()).find("127.0.0.1:no-such-service"), std::string_view::npos);
    EXPECT_GT(std::string_view(failure.what()).size(), std::string_view("look up 127.0.0.1:no-such-service: ").size());
  }
}

TEST(socket_address, one_that_is_no_internet_address_says_so) {
  EXPECT_EQ(socket_address().to_string(), "an unknown address");
  EXPECT_EQ(socket_address().port(), 0);
  EXPECT_FALSE(socket_address().is_loopback());
}

}  // namespace
}  // namespace weft

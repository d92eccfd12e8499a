// SPDX-License-Identifier: Apache-2.0
#include <weft/net/add_transport.hpp>
#include <weft/net/device.hpp>
#include <weft/net/iwarp/transport.hpp>

#include "kit/test.hpp"
#include "kit/thrown.hpp"

namespace weft::test {
namespace {

std::unique_ptr<net::transport> make(std::string_view) { return net::iwarp::open_transport(net::iwarp_options()); }

TEST(added_transport, is_opened_by_its_name_and_gets_what_follows_the_colon) {
  std::string got = "nothing";
  net::add_transport("added_by_name", [&](std::string_view name) {
    got = name;
    return make(name);
  });
  EXPECT_EQ(net::device::open("added_by_name").name(), "iwarp");
  EXPECT_EQ(got, "");
  static_cast<void>(net::device::open("shm,added_by_name:nic:2"));
  EXPECT_EQ(got, "nic:2");
}

TEST(added_transport, is_listed_among_those_that_are_known) {
  net::add_transport("added_to_list", make);
  const std::string words = words_thrown_by([] { return net::device::open("carrier-pigeon"); });
  EXPECT_NE(words.find("added_to_list:..."), std::string::npos) << words;
}

TEST(added_transport, takes_no_name_that_is_taken_or_means_something_else) {
  net::add_transport("added_once", make);
  for (const char* name : {"added_once", "iwarp", "shm", "auto", "", "a,b", "a+b", "a:b", "a b"}) {
    EXPECT_EQ(code_thrown_by([&] { net::add_transport(name, make); }), errc::invalid_argument) << name;
  }
  EXPECT_EQ(code_thrown_by([] { net::add_transport("added_nothing", nullptr); }), errc::invalid_argument);
}

TEST(added_transport, that_makes_nothing_is_an_error_that_names_it) {
  net::add_transport("added_in_vain", [](std::string_view) { return std::unique_ptr<net::transport>(); });
  const std::string words = words_thrown_by([] { return net::device::open("added_in_vain"); });
  EXPECT_NE(words.find("added_in_vain has made no transport"), std::string::npos) << words;
}

TEST(added_transport, is_added_by_one_of_many_threads_that_try) {
  std::atomic<int> added{0};
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&] {
      for (int number = 0; number != 50; ++number) {
        const std::string name = "added_by_threads_" + std::to_string(number);
        try {
          net::add_transport(name, make);
          ++added;
        } catch (const error&) {
        }
        static_cast<void>(net::device::open(name));
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(added, 50);
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
#include "shm/support.hpp"

namespace weft::test {
namespace {

std::string text_of(const shm::unix_name& name) {
  const auto& address = *reinterpret_cast<const sockaddr_un*>(name.data());
  return {address.sun_path, name.size() - offsetof(sockaddr_un, sun_path)};
}

std::string abstract(std::string_view address) { return std::string(1, '\0') + "weft/" + std::string(address); }

// Numeric addresses alone: nobody is asked for them.
socket_address address_of(std::string_view text) {
  executor home;
  return home.run(resolve(text, false)).front();
}

std::vector<std::string> tried_for(std::string_view target) {
  std::vector<std::string> all;
  for (const shm::unix_name& each : shm::names_of(address_of(target))) all.push_back(text_of(each));
  return all;
}

TEST(shm_addresses, stand_for_an_abstract_name_that_says_address_and_port) {
  EXPECT_EQ(text_of(shm::unix_name::of(address_of("127.0.0.1:7471"))), abstract("127.0.0.1:7471"));
  EXPECT_EQ(text_of(shm::unix_name::of(address_of("[::1]:7471"))), abstract("[::1]:7471"));
  EXPECT_EQ(text_of(shm::unix_name::of(address_of("[::ffff:10.1.2.3]:80"))), abstract("10.1.2.3:80"));
}

TEST(shm_addresses, are_looked_for_where_they_are_and_where_all_of_this_machine_are_listened_on) {
  EXPECT_EQ(tried_for("10.1.2.3:80"),
            (std::vector{abstract("10.1.2.3:80"), abstract("[::]:80"), abstract("0.0.0.0:80")}));
  EXPECT_EQ(tried_for("[2001:db8::1]:80"), (std::vector{abstract("[2001:db8::1]:80"), abstract("[::]:80")}));
}

TEST(shm_addresses, that_are_all_of_this_machine_reach_the_loopback) {
  EXPECT_EQ(tried_for("0.0.0.0:80").front(), abstract("127.0.0.1:80"));
  EXPECT_EQ(tried_for("[::]:80").front(), abstract("[::1]:80"));
}

TEST(shm_addresses, are_this_machines_if_a_socket_can_be_bound_there) {
  system_calls& calls = system_calls::kernel();
  EXPECT_EQ(shm::find_here(address_of("127.0.0.1:80"), calls), 0);
  EXPECT_EQ(shm::find_here(address_of("192.0.2.1:80"), calls), -EADDRNOTAVAIL);
}

TEST(shm_addresses, with_a_path_are_the_path_as_it_is) {
  EXPECT_EQ(shm::path_of("unix:/run/x:0"), "/run/x:0");
  EXPECT_EQ(shm::path_of("unix"), std::nullopt);
  EXPECT_EQ(shm::path_of("127.0.0.1:7471"), std::nullopt);
  EXPECT_EQ(text_of(shm::unix_name::of_path("/run/x")), std::string("/run/x") + '\0');
}

TEST(shm_addresses, with_a_path_that_is_none_or_too_long_are_refused) {
  const auto name = [](std::string_view path) { return [path] { static_cast<void>(shm::unix_name::of_path(path)); }; };
  const std::string longest(107, 'a');
  EXPECT_EQ(code_thrown_by(name(longest)), std::error_code());
  EXPECT_EQ(code_thrown_by(name(longest + "a")), errc::invalid_address);
  EXPECT_EQ(code_thrown_by(name("")), errc::invalid_address);
  EXPECT_EQ(code_thrown_by(name(std::string_view("a\0b", 3))), errc::invalid_address);
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Where the rails of a connection go whose user has named one address.
#include <weft/net/rails/told_address.hpp>

#include "ends.hpp"
#include "kit/test.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using namespace net::rails;

// What the other end makes of an address that one end tells.
std::optional<std::string> told(std::string_view address, std::string_view peer = "10.0.0.2:7471") {
  const auto said = tell_address(address, 1);
  if (!said) return std::nullopt;
  control::storage words;
  const auto heard = control::unpack(said->pack(words));
  return heard ? told_address(*heard, peer) : std::nullopt;
}

TEST(told_address, comes_as_it_was_told) {
  for (const char* each : {"10.1.0.2:7471", "192.168.255.1:1", "[fd77::1]:65535", "[2001:db8::a:b]:80"}) {
    EXPECT_EQ(told(each), each);
  }
}

TEST(told_address, that_says_nothing_to_others_is_not_told) {
  for (const char* each :
       {"0.0.0.0:7471", "[::]:7471", "10.0.0.2:0", "[fe80::1%eth0]:7471", "storage-3:7471", "10.0.0.2",
        "224.0.0.1:7471", "255.255.255.255:1", "[ff02::1]:7471", "[::ffff:10.0.0.2]:7471", ""}) {
    EXPECT_EQ(told(each), std::nullopt) << each;
  }
}

TEST(told_address, of_this_machine_is_believed_to_this_machine_alone) {
  EXPECT_EQ(told("127.0.0.1:22"), std::nullopt);
  EXPECT_EQ(told("[::1]:22"), std::nullopt);
  EXPECT_EQ(told("127.0.0.1:22", "127.0.0.1:7471"), "127.0.0.1:22");
}

TEST(told_address, of_any_bytes_is_one_or_none) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const control said{.kind = control_kind::listens,
                       .number = (bits & 1) << 16 | (bits & 2 ? 7471 : 0) | (bits & 4 ? UINT64_MAX << 17 : 0),
                       .key = (bits >> 3) * 0x0101010101010101u};
    const auto made = told_address(said, "10.0.0.2:7471");
    EXPECT_TRUE(!made || tell_address(*made, 0)) << *made;
  }
}

TEST(addresses, that_the_peer_has_are_found_by_who_was_given_one_of_them) {
  const two_cables cables{std::make_shared<cable>(), std::make_shared<cable>()};
  net::device device = open_rails(cables);
  const auto body = [&]() -> task<> {
    net::listener listener = co_await device.listen(two_ports());
    const std::string both(listener.address());
    const std::array<std::string, 2> each{both.substr(0, both.find('+')), both.substr(both.find('+') + 1)};
    for (std::size_t first = 0; first < 2; ++first) {
      SCOPED_TRACE(first);
      for (const auto& cable : cables) cable->addresses.clear();
      auto connecting = device.connect(each[first]);
      auto made = co_await when_all(std::move(connecting), listener.accept());
      while (cables[1]->addresses.empty()) co_await yield();
      EXPECT_EQ(cables[0]->addresses.front(), each[first]);
      EXPECT_EQ(cables[1]->addresses.front(), each[1 - first]);
    }
  };
  executor home;
  home.run(with_timeout(20s, body()));
}

}  // namespace
}  // namespace weft::test

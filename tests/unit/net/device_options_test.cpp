// SPDX-License-Identifier: Apache-2.0
// What belongs to a transport is an option of the device, and of no other device.

#include "net/support.hpp"

namespace weft::test {
namespace {

class device_options_test : public net_test {
 protected:
  struct ends {
    ends(net::connection one, net::connection other) noexcept : client(std::move(one)), server(std::move(other)) {}
    net::connection client;
    net::connection server;
  };
  task<ends> connect(net::device& from, net::device& to) {
    auto listener = co_await to.listen("127.0.0.1:0");
    auto both = co_await when_all(from.connect(std::string(listener.address())), listener.accept());
    co_return ends(std::get<0>(std::move(both)), *std::get<1>(std::move(both)));
  }

  /// Another one beside device().
  net::device& open(const net::iwarp_options& options) {
    open_device({.iwarp = options});
    return device();
  }
};

TEST_F(device_options_test, checksums_are_used_where_the_device_of_either_end_wants_them) {
  const std::array wants{false, true};
  const std::array<net::device*, 2> devices{&open({.checksum = false}), &open({.checksum = true})};
  run([&]() -> task<> {
    for (const std::size_t client : {0U, 1U}) {
      for (const std::size_t server : {0U, 1U}) {
        const auto both = co_await connect(*devices[client], *devices[server]);
        EXPECT_EQ(both.client.capabilities().checksum, wants[client] || wants[server]);
        EXPECT_EQ(both.server.capabilities().checksum, wants[client] || wants[server]);
      }
    }
  });
}

TEST_F_TASK(device_options_test, checksums_that_nobody_chooses_are_left_out_over_the_loopback) {
  const auto both = co_await connect(device(), device());
  EXPECT_FALSE(both.client.capabilities().checksum);
  EXPECT_FALSE(both.server.capabilities().checksum);
}

TEST_F(device_options_test, that_place_what_is_not_checked_yet_are_of_the_end_that_has_chosen_so) {
  net::device& careful = open({.checksum = true});
  net::device& hasty = open({.checksum = true, .place_unchecked = true});
  const auto places_in_pieces = [](const net::connection& end) {
    return end.capabilities().max_whole_write_bytes < end.capabilities().max_message_bytes;
  };
  run([&]() -> task<> {
    const auto there = co_await connect(careful, hasty);
    EXPECT_FALSE(places_in_pieces(there.client));
    EXPECT_TRUE(places_in_pieces(there.server));
    const auto back = co_await connect(hasty, careful);
    EXPECT_TRUE(places_in_pieces(back.client));
    EXPECT_FALSE(places_in_pieces(back.server));
  });
}

}  // namespace
}  // namespace weft::test

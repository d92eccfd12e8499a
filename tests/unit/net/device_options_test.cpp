// SPDX-License-Identifier: Apache-2.0
// What belongs to a transport is an option of the device, and of no other device.

#include "net/support.hpp"

namespace weft::test {
namespace {

class device_options_test : public net_test {};

TEST_F_TASK(device_options_test, checksums_are_used_where_the_device_of_either_end_wants_them) {
  const std::array wants{false, true};
  const std::array<net::device*, 2> devices{&open_device({.iwarp = {.checksum = false}}),
                                            &open_device({.iwarp = {.checksum = true}})};
  for (const std::size_t client : {0U, 1U}) {
    for (const std::size_t server : {0U, 1U}) {
      const auto both = co_await connected(*devices[client], *devices[server]);
      EXPECT_EQ(both.client.capabilities().checksum, wants[client] || wants[server]);
      EXPECT_EQ(both.server.capabilities().checksum, wants[client] || wants[server]);
    }
  }
}

TEST_F_TASK(device_options_test, checksums_that_nobody_chooses_are_left_out_over_the_loopback) {
  const auto both = co_await connected(device(), device());
  EXPECT_FALSE(both.client.capabilities().checksum);
  EXPECT_FALSE(both.server.capabilities().checksum);
}

TEST_F_TASK(device_options_test, that_place_what_is_not_checked_yet_are_of_the_end_that_has_chosen_so) {
  net::device& careful = open_device({.iwarp = {.checksum = true}});
  net::device& hasty = open_device({.iwarp = {.checksum = true, .place_unchecked = true}});
  const auto places_in_pieces = [](const net::connection& end) {
    return end.capabilities().max_whole_write_bytes < end.capabilities().max_message_bytes;
  };
  const auto there = co_await connected(careful, hasty);
  EXPECT_FALSE(places_in_pieces(there.client));
  EXPECT_TRUE(places_in_pieces(there.server));
  const auto back = co_await connected(hasty, careful);
  EXPECT_TRUE(places_in_pieces(back.client));
  EXPECT_FALSE(places_in_pieces(back.server));
}

}  // namespace
}  // namespace weft::test

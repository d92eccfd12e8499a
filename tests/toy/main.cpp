// SPDX-License-Identifier: Apache-2.0
// The conformance suite on the toy fabric.
#include <weft/net/add_transport.hpp>

#include "conformance/peers.hpp"
#include <toy/fabric.hpp>

namespace {

// What is left out, because the toy has no part in it:
//   cut_link.*                                    takes the network away; the toy has none
//   registrations.survive_the_loss_of_their_file  it neither pins pages nor copies by way of the kernel
//   set_up.automatic_choice_...                   which does not choose a transport that was added
constexpr const char* left_out =
    "*cut_link.*:*registrations.survive_the_loss_of_their_file/*:"
    "*set_up.automatic_choice_takes_a_device_where_there_is_one/*";

}  // namespace

int main(int argc, char** argv) {
  weft::net::add_transport("toy", [](std::string_view) { return weft::toy::open_transport(); });
  weft::test::choose({.name = "toy",
                      .device = "toy",
                      .any_address = "127.0.0.1:0",
                      .revokes_at_once = true,
                      .keeps_length_of_private_data = true,
                      .sets_up_quickly = true,
                      .answers_in_turns = true,
                      .deepest_queue = weft::net::max_depth});
  testing::InitGoogleTest(&argc, argv);
  std::string& filter = testing::GTEST_FLAG(filter);
  filter += (filter.find('-') == std::string::npos ? "-" : ":") + std::string(left_out);
  return RUN_ALL_TESTS();
}

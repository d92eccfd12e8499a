// SPDX-License-Identifier: Apache-2.0
// The conformance suite on connections of several rails.
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/software/domain.hpp>

#include "conformance/peers.hpp"

namespace {

using namespace weft;

std::unique_ptr<net::transport> open_iwarp_rails(std::size_t count) {
  const auto home = std::make_shared<net::software::domain>(system_calls::kernel(), "iwarp");
  std::vector<std::unique_ptr<net::transport>> ways;
  for (std::size_t i = 0; i < count; ++i) ways.push_back(net::iwarp::open_transport({.checksum = false}, home));
  return net::rails::open_transport(std::move(ways));
}

test::transport_kind rails(std::string name, std::unique_ptr<net::transport> (*make)()) {
  return {.name = std::move(name),
          .device = "rails",
          .any_address = "127.0.0.1:0",
          .iwarp = {.checksum = false},
          .make = make,
          .over_tcp = true,
          .writes_precede_refusals = true,
          .tells_of_revoked_keys = true,
          .forgives_late_accesses = true,
          .revokes_at_once = true,
          .keeps_length_of_private_data = true,
          .pins_pages = false,
          .joins_later = true,
          .deepest_queue = 16000};
}

// What is left out, and why.
constexpr const char* promises =
    // They count the system calls and wake-ups of one TCP connection.
    "*-*cost.a_batch_of_small*:*cost.an_idle_connection*:*cost.what_the_tasks_of_a_turn*:*cost.answers_to_messages*:"
    // They name memory by the key of one link.
    "*exposures.that_a_peer_uses_too_late*:*exposures.no_key_ever_opens*:"
    // They fill the pool to the last byte that a connection of one link needs.
    "*credits.a_connection_that_waits_for_receive_memory*:*messages.larger_than_a_tcp_segment*:"
    "*those_that_wait_for_receives_at_once*";

}  // namespace

int main(int argc, char** argv) {
  test::choose(rails("two_over_iwarp", [] { return open_iwarp_rails(2); }));
  test::choose(rails("three_over_iwarp", [] { return open_iwarp_rails(3); }));
  testing::GTEST_FLAG(filter) = promises;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

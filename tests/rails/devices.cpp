// SPDX-License-Identifier: Apache-2.0
// The conformance suite on connections with rails of RDMA devices, which are simulated: so is the time. Lists also over
// one such device, whose link takes them apart.
#include <weft/net/rails/transport.hpp>

#include "conformance/peers.hpp"
#include "simulated.hpp"

namespace {

using namespace weft;

// Each test has a place of its own, out of the seed that --gtest_random_seed is, also in the process that dies in a
// death test, where nobody is told that it begins.
std::optional<test::simulated_place> here;

test::simulated_place& place() {
  // What turns a peer away is sent by one call, of which the socket takes all.
  static constexpr sim::conditions like{.short_share = 0};
  if (!here) here.emplace(1 + static_cast<std::uint64_t>(testing::UnitTest::GetInstance()->random_seed()), like);
  return *here;
}

// Nothing is left when a test is over.
class places final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    if (here) here->expect_nothing_left();
    here.reset();
  }
};

std::unique_ptr<net::transport> open_verbs() { return place().open_verbs({.most_inline = 128}); }
std::unique_ptr<net::transport> open_iwarp() { return place().open_iwarp(); }

using way = std::unique_ptr<net::transport>();

template <way*... all>
std::unique_ptr<net::transport> open_rails() {
  std::vector<std::unique_ptr<net::transport>> ways;
  (ways.push_back(all()), ...);
  return net::rails::open_transport(std::move(ways));
}

test::transport_kind simulated(std::string name, std::size_t rails, std::unique_ptr<net::transport> (*make)()) {
  std::string address = "127.0.0.1:0";
  for (std::size_t i = 1; i < rails; ++i) address += "+127.0.0.1:0";
  const bool is_iwarp = name.starts_with("iwarp");  // what carries the messages
  return {.name = std::move(name),
          .device = "rails",
          .any_address = address,
          .make = make,
          .place = [] { return place().world.options(false); },
          .over_a_network = false,
          .writes_precede_refusals = is_iwarp,
          .tells_of_revoked_keys = is_iwarp,
          .forgives_late_accesses = true,
          .ends_overtake_refusals = !is_iwarp,
          .joins_later = true,
          .deepest_queue = 1000};
}

// What is run, and what is left out of that, and why.
constexpr const char* chosen =
    "*/verbs_and_verbs:*/verbs_and_iwarp:*/iwarp_and_verbs:*/verbs_verbs_and_iwarp:*lists.*/verbs"
    // They have executors on threads of their own, of which the simulated kernel knows nothing.
    "-*threads.*:*frozen.*:*atomics.of_many_executors*:*cost.at_most_two*:*cost.an_idle_connection*:"
    // So has a cache.
    "*.of_a_cache_serve*:"
    // The simulation allocates, pins no pages, and takes memory that is not there.
    "*cost.no_heap_allocation*:*registrations.survive_the_loss*:*registrations.of_memory_that_cannot*:"
    // They name times of this machine's clock.
    "*exposures_until_a_time*:"
    // In the simulation a refusal may come after what the connection manager says of the end, over one link as well.
    "*batches.throw_the_first_failure*:"
    // They give a device, or the other end's program, so many turns and no more.
    "*batches.stopped_while_they_wait_for_credits*:*cancellation.a_stopped_send_of_pool_memory*:"
    "*cancellation.an_exchange_stopped_at_any_turn*:"
    // They fill the pool to the last byte that a connection of one link needs.
    "*credits.a_connection_that_waits_for_receive_memory*:*messages.larger_than_a_tcp_segment*:"
    "*those_that_wait_for_receives_at_once*:"
    // A listener of two devices that goes turns away who comes in that moment.
    "*set_up.a_port_where_nobody_listens*/verbs*:"
    // They name memory by the key of one link.
    "*exposures.no_key_ever_opens*:*exposures.that_a_peer_uses_too_late*:"
    // A region stays in use while a further rail opens a key to it, also when its exposure has gone.
    "*windows.destroyed_or_replaced*:*windows.that_are_retired_keep*:"
    // They make addresses of one part, and words of one fabric; or count attempts, of which there is one over each
    // kind.
    "*set_up.both_families*:*sentences.of_set_ups/*and_iwarp:*sentences.of_set_ups/iwarp_and*:"
    "*set_up.that_come_to_nothing*/iwarp_and*:*destruction.of_a_task_that_turns_a_peer_away*/iwarp_and*:"
    // Rails of two kinds promise what both keep, and one of them keeps more.
    "*messages.the_capabilities*/*and_iwarp:*messages.the_capabilities*/iwarp_and*";

}  // namespace

int main(int argc, char** argv) {
  test::choose(simulated("verbs_and_verbs", 2, open_rails<open_verbs, open_verbs>));
  test::choose(simulated("verbs_and_iwarp", 2, open_rails<open_verbs, open_iwarp>));
  test::choose(simulated("iwarp_and_verbs", 2, open_rails<open_iwarp, open_verbs>));
  test::choose(simulated("verbs_verbs_and_iwarp", 3, open_rails<open_verbs, open_verbs, open_iwarp>));
  test::transport_kind alone = simulated("verbs", 1, open_verbs);
  alone.forgives_late_accesses = alone.joins_later = false;
  test::choose(alone);
  testing::GTEST_FLAG(filter) = chosen;
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new places);
  return RUN_ALL_TESTS();
}

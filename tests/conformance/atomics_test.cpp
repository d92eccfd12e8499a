// SPDX-License-Identifier: Apache-2.0
// fetch_add and compare_swap on a peer's memory.
#include <future>

#include "peers.hpp"

namespace weft::test {
namespace {

constexpr mr::usage counters = mr::usage::atomic_dst | mr::usage::read_src | mr::usage::write_dst;

std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

class atomics : public peers {
 protected:
  /// Skips where the link has none.
  void between_atomic_peers(const test_script<net::connection&, net::connection&, scope&>& script,
                            net::connection_options client = options(), net::connection_options server = options()) {
    bool possible = true;
    between_busy_peers(
        [&](net::connection& a, net::connection& b, scope& tasks) -> task<> {
          possible = a.capabilities().atomics;
          EXPECT_EQ(possible, b.capabilities().atomics);
          if (possible) co_await script(a, b, tasks);
        },
        client, server);
    if (!possible) GTEST_SKIP() << "this link has no atomic operations";
  }

  task<net::exposure> expose_words(net::connection& at, std::size_t words, mr::usage uses = counters) {
    return expose_zeros(at, words * 8, uses);
  }
};
WEFT_ON_EVERY_TRANSPORT(atomics);

#define TEST_P_ATOMICS(suite, name, ...) \
  TEST_P_SCRIPT(suite, name, WEFT_ENDS_AND_TASKS, between_atomic_peers(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

TEST_P_ATOMICS(atomics, a_fetch_add_yields_what_was_there_and_adds) {
  const auto open = co_await expose_words(server, 3);
  const auto where = open.remote().slice(8, 8);
  EXPECT_EQ(co_await client.fetch_add(where, 5), 0u);
  const auto second = co_await client.fetch_add(where, ~std::uint64_t{0});
  EXPECT_EQ(second, 5u);
  const auto third = co_await client.fetch_add(where, std::uint64_t{1} << 63);
  EXPECT_EQ(third, 4u);
  const auto bytes = open.memory().bytes();
  EXPECT_EQ(word_at(bytes, 8), (std::uint64_t{1} << 63) + 4);
  EXPECT_TRUE(is_zero(bytes.first(8)) && is_zero(bytes.last(8)));
}

TEST_P_ATOMICS(atomics, a_compare_swap_changes_what_was_expected_and_nothing_else) {
  const auto open = co_await expose_words(server, 1);
  EXPECT_EQ(co_await client.compare_swap(open.remote(), 1, 2), 0u);
  EXPECT_EQ(word_at(open.memory().bytes(), 0), 0u);
  EXPECT_EQ(co_await client.compare_swap(open.remote(), 0, 0x0123456789abcdef), 0u);
  EXPECT_EQ(co_await client.fetch_add(open.remote(), 0), 0x0123456789abcdefu);
}

TEST_P_ATOMICS(atomics, start_in_posting_order_with_reads_writes_and_sends_and_complete_in_it) {
  const auto open = co_await expose_words(server, 10000);
  auto whole = co_await zeroed(pool(), 80000);
  auto note = co_await filled(pool(), 8, 1);
  std::vector<std::uint64_t> completed;
  const auto one = [&](std::uint64_t number) -> task<> {
    auto sink = co_await zeroed(pool(), 80000);
    switch (number % 4) {
      case 0: {
        EXPECT_EQ(co_await client.fetch_add(open.remote().slice(79992, 8), 1), number / 4);
        break;
      }
      case 1:
        co_await client.read(sink, open.remote());
        EXPECT_EQ(word_at(sink.bytes(), 79992), number / 4 + 1);
        break;
      case 2:
        co_await client.write(whole.slice(0, 79992), open.remote().slice(0, 79992));
        break;
      default:
        co_await client.send(note);
    }
    completed.push_back(number);
  };
  for (std::uint64_t i = 0; i < 80; ++i) tasks.spawn(one(i));
  for (int i = 0; i < 20; ++i) static_cast<void>(co_await server.recv_or_throw());
  while (completed.size() < 80) co_await yield();
  EXPECT_TRUE(std::is_sorted(completed.begin(), completed.end()));
}

TEST_P_ATOMICS(atomics, share_the_limit_of_outstanding_reads, options(), options({.incoming_reads = 2})) {
  const auto open = co_await expose_words(server, 1);
  std::uint64_t done = 0;
  const auto add = [&]() -> task<> { EXPECT_EQ(co_await client.fetch_add(open.remote(), 1), done++); };
  for (int i = 0; i < 50; ++i) tasks.spawn(add());
  while (done < 50) co_await yield();
  EXPECT_EQ(word_at(open.memory().bytes(), 0), 50u);
}

TEST_P_ATOMICS(atomics, that_cannot_work_are_refused_before_they_are_posted) {
  const auto open = co_await expose_words(server, 3);
  const auto closed = co_await expose_words(server, 1, mr::usage::read_src | mr::usage::write_dst);
  const auto expect = [&](const mr::remote_slice& where, errc code) -> task<> {
    EXPECT_TRUE(refused_with(co_await failure_of(client.fetch_add(where, 1)), code));
    EXPECT_TRUE(refused_with(co_await failure_of(client.compare_swap(where, 0, 1)), code));
  };
  co_await expect(open.remote(), errc::invalid_argument);
  co_await expect(open.remote().slice(0, 4), errc::invalid_argument);
  co_await expect(open.remote().slice(0, 0), errc::invalid_argument);
  co_await expect(open.remote().slice(4, 8), errc::misaligned);
  co_await expect(closed.remote(), errc::access_denied);
  const auto before = co_await client.fetch_add(open.remote().slice(0, 8), 1);  // no harm was done
  EXPECT_EQ(before, 0u);
}

TEST_P_ATOMICS(atomics, are_refused_where_the_peer_takes_no_reads, options(), options({.incoming_reads = 0})) {
  const auto open = co_await expose_words(server, 1);
  const auto failure = co_await failure_of(client.fetch_add(open.remote(), 1));
  EXPECT_TRUE(failed_with(failure, errc::not_supported, "fetch_add 8 bytes"));
  EXPECT_FALSE(failure && failure->posted());
}

TEST_P(atomics, are_refused_by_the_peer_whatever_we_believe) {
  for (const mr::usage allowed : {mr::usage::read_src | mr::usage::write_dst, mr::usage::atomic_dst}) {
    if (GetParam().writing_allows_atomics && allowed != mr::usage::atomic_dst) continue;
    between_atomic_peers([&](net::connection& client, net::connection& server, scope&) -> task<> {
      const auto open = co_await expose_words(server, 1, allowed);
      const bool lies_about_rights = !mr::includes(allowed, mr::usage::atomic_dst);
      const std::uint64_t address = open.remote().address() + (lies_about_rights ? 0 : 8);
      const mr::remote_region forged(open.remote().key(), address, 8, counters);
      const auto failure = co_await failure_of(client.fetch_add(forged, 1));
      EXPECT_TRUE(failure && failure->code() == errc::remote_access && failure->posted())
          << (failure ? failure->what() : "none");
      EXPECT_EQ(co_await code_of(server.recv()), errc::protocol_error);
      EXPECT_TRUE(is_zero(open.memory().bytes()));
    });
  }
}

TEST_P(atomics, work_on_registered_memory_of_the_users_own) {
  if (!opens_regions()) GTEST_SKIP() << no_open_regions;
  between_atomic_peers([&](net::connection& client, net::connection&, scope&) -> task<> {
    const mr::registration_options purpose{.usage = mr::usage::atomic_dst};
    auto region = co_await device().domain().register_memory(std::vector<std::uint64_t>(4), purpose);
    EXPECT_EQ(co_await client.fetch_add(region.remote().slice(24, 8), 7), 0u);
    EXPECT_EQ(word_at(region.bytes(), 24), 7u);
    co_await region.release();
  });
}

TEST_P_ATOMICS(atomics, stopped_return_at_once_and_leave_the_connection_alone) {
  const auto open = co_await expose_words(server, 1);
  attempt adding(tasks, client.fetch_add(open.remote(), 1));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(adding), errc::canceled);
  EXPECT_TRUE(adding.posted());
  const auto after = co_await client.fetch_add(open.remote(), 1);
  EXPECT_EQ(after, 1u);  // the stopped one took effect, once
}

TEST_P_ATOMICS(atomics, stopped_while_they_wait_for_a_slot_have_not_happened, options({.send_depth = 1})) {
  const auto open = co_await expose_words(server, 1);
  attempt first(tasks, client.fetch_add(open.remote(), 1));
  attempt second(tasks, client.fetch_add(open.remote(), 10));
  attempt third(tasks, client.fetch_add(open.remote(), 100));
  co_await yield();
  second.stop();
  co_await second.end();
  EXPECT_TRUE(second.code() == errc::canceled && !second.posted());
  co_await third.end();
  EXPECT_TRUE(first.succeeded() && third.succeeded());
  EXPECT_EQ(word_at(open.memory().bytes(), 0), 101u);
}

TEST_P_ATOMICS(atomics, an_operation_that_was_never_awaited_does_nothing) {
  const auto open = co_await expose_words(server, 1);
  { const auto forgotten = client.fetch_add(open.remote(), 1); }
  EXPECT_EQ(co_await client.fetch_add(open.remote(), 1), 0u);
}

TEST_P(atomics, of_many_executors_and_of_the_process_itself_lose_no_step) {
  if (!mr::includes(device().domain().capabilities().usages, mr::usage::atomic_dst)) {
    GTEST_SKIP() << "this link has no atomic operations";
  }
  constexpr std::uint64_t steps = 2000;
  constexpr std::uint64_t clients = 2;
  const mr::registration_options purpose{.usage = mr::usage::atomic_dst};
  alignas(8) std::uint64_t counter = 0;
  std::promise<std::string> address;
  std::optional<mr::remote_region> where;
  const auto serve = [&](net::listener& listener) -> task<> {
    auto peer = co_await accept_one(listener, options());
    static_cast<void>(co_await peer.recv());
  };
  std::future<std::string> target_known = address.get_future();
  other_thread server([&, address = std::move(address)](const std::stop_token& left_early) mutable {
    executor there;
    const auto root = [&]() -> task<> {
      auto region = co_await device().domain().register_memory(std::as_writable_bytes(std::span(&counter, 1)), purpose);
      where = region.remote();
      auto listener = co_await device().listen(std::string(GetParam().any_address));
      address.set_value(std::string(listener.address()));
      const auto both = [&](scope& tasks) -> task<> {
        for (std::uint64_t i = 0; i < clients; ++i) tasks.spawn(serve(listener));
        co_return;
      };
      co_await with_scope(on_failure::stop_siblings, both);
      co_await region.release();
    };
    there.run(with_timeout(forever, root()), left_early);
  });
  const std::string target = target_known.get();
  bool possible = true;
  const auto add_all = [&] {
    executor here;
    const auto root = [&]() -> task<> {
      auto peer = co_await device().connect(target, options());
      for (std::uint64_t i = 0; i < steps && peer.capabilities().atomics; ++i) {
        if (i % 2 == 0) {
          static_cast<void>(co_await peer.fetch_add(*where, 1));
          continue;
        }
        std::uint64_t expected = co_await peer.fetch_add(*where, 0);
        for (;;) {
          const std::uint64_t seen = co_await peer.compare_swap(*where, expected, expected + 1);
          if (seen == expected) break;
          expected = seen;
        }
      }
      if (!peer.capabilities().atomics) possible = false;
      co_await peer.close();
    };
    here.run(with_timeout(forever, root()));
  };
  std::vector<other_thread> all;
  for (std::uint64_t i = 0; i < clients; ++i) all.emplace_back(add_all);
  for (std::uint64_t i = 0; i < steps; ++i) std::atomic_ref(counter).fetch_add(1);
  for (other_thread& each : all) each.join();
  server.join();
  if (!possible) GTEST_SKIP() << "this link has no atomic operations";
  EXPECT_EQ(counter, (clients + 1) * steps);
}

}  // namespace
}  // namespace weft::test

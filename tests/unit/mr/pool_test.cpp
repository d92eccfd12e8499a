// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/size_class.hpp>

#include "../../sim/loose_task.hpp"
#include "kit/bytes.hpp"
#include "kit/child.hpp"
#include "kit/clock.hpp"
#include "kit/expect_failure.hpp"
#include "kit/held_mappings.hpp"
#include "kit/locked_memory.hpp"
#include "kit/report_list.hpp"
#include "mr/support.hpp"

#if defined(WEFT_TEST_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace weft::mr {
namespace {

// Pools remember where their buffers were allocated, and overwrite what was freed.
#if (!defined(NDEBUG) && !defined(WEFT_TEST_TSAN)) || defined(WEFT_TEST_ASAN)
constexpr bool remembers_buffers = true;
#else
constexpr bool remembers_buffers = false;
#endif

using test::counting_memory;
using test::recording_domain;

using test::kib;
using test::mib;

class pool_test : public ::testing::Test {
 protected:
  /// Nothing is left of any test.
  void TearDown() override {
    EXPECT_EQ(memory.mapped, 0U);
    EXPECT_EQ(domain->registered, domain->deregistered);
  }

  // Both budgets have 64 KiB, in one arena each: four buffers of 16 KiB.
  pool_options small() { return of(128 * kib); }
  pool_options of(std::size_t max_bytes, std::size_t arena_bytes = 64 * kib) {
    return {.max_bytes = max_bytes, .arena_bytes = arena_bytes, .huge_pages = false, .system_calls = &memory};
  }
  pool_options large() { return {.max_bytes = 64 * mib, .huge_pages = false, .system_calls = &memory}; }

  void with_pool(const pool_options& options, const test::test_script<pool&>& script) {
    test::run([&]() -> task<> {
      pool source(domain, options);
      co_await script(source);
    });
  }

  counting_memory memory;
  std::shared_ptr<recording_domain> domain = std::make_shared<recording_domain>();
};

#define TEST_F_POOL(fixture, name, options) \
  TEST_F_SCRIPT(fixture, name, (pool & source), with_pool(options, WEFT_SCRIPT))

task<std::vector<buffer>> take_all(pool& source, budget share = budget::send) {
  std::vector<buffer> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(co_await source.allocate(16 * kib, share));
  co_return taken;
}

TEST(size_class, holds_what_was_asked_for_and_wastes_at_most_a_quarter) {
  for (std::size_t bytes = 1; bytes < 100'000; ++bytes) {
    const std::size_t size = detail::class_bytes(detail::class_of(bytes));
    ASSERT_GE(size, bytes);
    if (bytes >= detail::smallest_block) {
      ASSERT_LE(size * 4, bytes * 5 + 256) << bytes;
    }
    ASSERT_EQ(size % 64, 0U);
    ASSERT_EQ(detail::class_of(size), detail::class_of(bytes));
  }
}

TEST_F_POOL(pool_test, yields_buffers_of_the_size_asked_for_that_can_be_resized_within_their_capacity, large()) {
  buffer made = co_await source.allocate(1000);
  EXPECT_EQ(made.size(), 1000U);
  EXPECT_GE(made.capacity(), 1000U);
  made.resize(made.capacity());
  EXPECT_EQ(made.bytes().size(), made.capacity());
  EXPECT_EQ(test::code_thrown_by([&] { made.resize(made.capacity() + 1); }), errc::out_of_range);
  const buffer empty = co_await source.allocate(0);
  EXPECT_EQ(empty.size(), 0U);
  EXPECT_TRUE(empty);
}

TEST_F_POOL(pool_test, buffers_name_the_registration_of_their_arena, large()) {
  const buffer made = co_await source.allocate(100);
  const slice all = made.slice();
  EXPECT_EQ(all.data(), made.data());
  EXPECT_EQ(all.size(), 100U);
  EXPECT_EQ(all.record()->registration.local_key, 1U);
  EXPECT_EQ(all.domain(), domain.get());
  EXPECT_EQ(made.slice(40, 60).data(), made.data() + 40);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(41, 60); }), errc::out_of_range);
  EXPECT_FALSE(overlaps(domain->last_options.usage, peer_usages)) << "an arena is open to peers";
}

TEST_F(pool_test, maps_and_registers_on_workers_only) {
  memory.forbidden = std::this_thread::get_id();
  domain->while_registering = [&, here = std::this_thread::get_id()] { EXPECT_NE(std::this_thread::get_id(), here); };
  domain->while_deregistering = domain->while_registering;
  test::run([&]() -> task<> {
    pool source(domain, large());
    for (int round = 0; round < 3; ++round) {
      std::vector<buffer> held;
      for (int i = 0; i < 20; ++i) held.push_back(co_await source.allocate(mib));
    }
  });
  EXPECT_FALSE(memory.called_from_forbidden);
  EXPECT_GT(memory.mappings, 1U);
}

TEST_F_POOL(pool_test, allocating_and_freeing_from_a_cache_allocates_nothing_and_takes_no_turn, large()) {
  std::array<std::optional<buffer>, 16> held;
  for (auto& each : held) each = co_await source.allocate(1500);
  for (auto& each : held) each.reset();
  const std::size_t before = test::allocations();
  const std::uint64_t resumed_before = executor::current()->statistics().resumed;
  for (int round = 0; round < 1000; ++round) {
    for (auto& each : held) each.emplace(co_await source.allocate(1500));
    for (auto& each : held) each.reset();
  }
  EXPECT_EQ(test::allocations(), before);
  EXPECT_EQ(executor::current()->statistics().resumed, resumed_before);
}

TEST_F_POOL(pool_test, too_large_a_buffer_is_refused_with_the_limit_in_words, small()) {
  EXPECT_EQ(source.max_buffer_bytes(), 64 * kib);
  EXPECT_TRUE(test::failed_with(co_await test::failure_of(source.allocate(64 * kib + 1)), errc::invalid_argument,
                                "limited to 65536 bytes"));
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(source.try_allocate(64 * kib + 1)); }),
            errc::invalid_argument);
  const buffer largest = co_await source.allocate(64 * kib);
  EXPECT_EQ(largest.size(), 64 * kib);
}

// Where all is for receives, not even an empty buffer can be had for a send.
TEST_F(pool_test, a_budget_of_nothing_refuses_every_buffer) {
  pool source(domain, {.receive_fraction = 1});
  EXPECT_EQ(source.max_buffers(0), 0U);
  EXPECT_EQ(source.max_buffers(SIZE_MAX), 0U);
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(source.try_allocate(0)); }), errc::invalid_argument);
  const auto ask = [&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(source.allocate(0)), errc::invalid_argument);
    EXPECT_EQ(co_await test::code_of(source.allocate_all(1, 0)), errc::invalid_argument);
  };
  executor home;
  home.run(ask());
}

// As a floating-point number it is larger than any limit.
TEST_F(pool_test, the_largest_limit_is_shared_like_any_other) {
  constexpr std::size_t most = ~std::size_t{0};
  const pool of_receives(domain, {.max_bytes = most, .receive_fraction = 1});
  EXPECT_EQ(of_receives.max_buffer_bytes(budget::receive), most - 16 * kib + 1);
  EXPECT_EQ(of_receives.max_buffer_bytes(budget::send), 0U);
  const pool of_both(domain, {.max_bytes = most});
  EXPECT_EQ(of_both.max_buffer_bytes(budget::receive), most / 2 + 1);
  EXPECT_EQ(of_both.max_buffer_bytes(budget::send), most / 2 - 16 * kib + 1);
}

TEST_F(pool_test, options_that_leave_no_room_are_refused) {
  EXPECT_EQ(test::code_thrown_by([&] { pool(domain, {.max_bytes = 100}); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { pool(domain, {.arena_bytes = 100}); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { pool(domain, {.receive_fraction = 1.5}); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { pool(domain, {.receive_fraction = -1}); }), errc::invalid_argument);
}

// Waits for a buffer, notes when it comes, and gives it back when told.
task<> wait_for(pool& source, std::size_t bytes, std::vector<int>& order, int name, event& release) {
  const buffer made = co_await source.allocate(bytes);
  order.push_back(name);
  co_await release.wait();
}

task<> until_waiting(pool& source, std::size_t count, budget share = budget::send) {
  while (source.statistics().of(share).waiting != count) co_await yield();
}

TEST_F_POOL(pool_test, waits_when_its_share_is_used_up_and_serves_in_order_of_coming, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::vector<int> order;
  event release;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    for (int name = 0; name < 3; ++name) children.spawn(wait_for(source, 16 * kib, order, name, release));
    co_await until_waiting(source, 3);
    EXPECT_TRUE(order.empty());
    EXPECT_FALSE(source.try_allocate(100)) << "jumped the queue";
    for (std::size_t done = 1; done <= 3; ++done) {
      all.pop_back();
      while (order.size() < done) co_await yield();
    }
    release.set();
  });
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  EXPECT_LE(memory.most_mapped, 128 * kib);
}

TEST_F_POOL(pool_test, a_large_request_is_not_overtaken_by_small_ones, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::vector<int> order;
  event release;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait_for(source, 48 * kib, order, 0, release));
    co_await until_waiting(source, 1);
    children.spawn(wait_for(source, 1 * kib, order, 1, release));
    co_await until_waiting(source, 2);
    all.pop_back();
    all.pop_back();
    for (int turn = 0; turn < 100; ++turn) co_await yield();
    EXPECT_TRUE(order.empty());
    all.clear();
    while (order.size() < 2) co_await yield();
    release.set();
  });
  EXPECT_EQ(order, (std::vector{0, 1}));
}

TEST_F_POOL(pool_test, a_waiter_that_is_stopped_leaves_the_queue_to_the_others, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::vector<int> order;
  event release;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    std::error_code code;
    const auto stopped = [&]() -> task<> { code = co_await test::code_of(source.allocate(64 * kib)); };
    co_await with_scope(on_failure::stop_siblings, [&](scope& first) -> task<> {
      first.spawn(stopped());
      co_await until_waiting(source, 1);
      children.spawn(wait_for(source, 16 * kib, order, 1, release));
      co_await until_waiting(source, 2);
      all.pop_back();  // not enough for the first, who holds up the second
      first.request_stop();
    });
    EXPECT_EQ(code, errc::canceled);
    while (order.empty()) co_await yield();
    release.set();
  });
  EXPECT_EQ(source.statistics().send.waiting, 0U);
}

sim::loose_task allocate_loosely(pool& source, int& received) {
  const buffer made = co_await source.allocate(16 * kib);
  ++received;
}

/// One that waits as the last of so many.
task<sim::loose_task> waiting_loosely(pool& source, int& received, std::size_t waiting) {
  sim::loose_task waiter = allocate_loosely(source, received);
  waiter.start(*executor::current());
  co_await until_waiting(source, waiting);
  co_return waiter;
}

void on_another_thread(const std::function<void()>& body) { std::thread(body).join(); }

// What another thread has served it with is not here before the executor's next turn.
TEST_F_POOL(pool_test, a_buffer_on_its_way_to_a_task_that_is_destroyed_goes_back, small()) {
  std::vector<buffer> all = co_await take_all(source);
  int received = 0;
  {
    const sim::loose_task first = co_await waiting_loosely(source, received, 1);
    std::optional<sim::loose_task> second = co_await waiting_loosely(source, received, 2);
    const sim::loose_task third = co_await waiting_loosely(source, received, 3);
    on_another_thread([&] { all.resize(1); });
    EXPECT_EQ(source.statistics().send.waiting, 0U);
    second.reset();
    EXPECT_EQ(received, 0);
    while (received < 2) co_await yield();
  }
  EXPECT_EQ(received, 2);
  EXPECT_EQ(source.statistics().send.in_use_bytes, 16 * kib);
  const buffer rest = co_await source.allocate(48 * kib);
  EXPECT_EQ(rest.size(), 48 * kib);
}

TEST_F_POOL(pool_test, several_buffers_on_their_way_to_a_task_that_is_destroyed_go_back, small()) {
  std::vector<buffer> all = co_await take_all(source);
  bool received = false;
  const auto gather = [&]() -> sim::loose_task {
    const auto got = co_await source.allocate_all(3, 16 * kib);
    received = !got.empty();
  };
  {
    const sim::loose_task waiter = gather();
    waiter.start(*executor::current());
    co_await until_waiting(source, 1);
    on_another_thread([&] { all.clear(); });
    EXPECT_EQ(source.statistics().send.waiting, 0U);
  }
  EXPECT_FALSE(received);
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
}

TASK_TEST_F(pool_test, the_end_of_the_pool_on_its_way_to_a_task_that_is_destroyed_is_forgotten) {
  std::optional<pool> source(std::in_place, domain, small());
  const std::vector<buffer> all = co_await take_all(*source);
  int received = 0;
  {
    const sim::loose_task waiter = co_await waiting_loosely(*source, received, 1);
    on_another_thread([&] { source.reset(); });
  }
  co_await yield();
  EXPECT_EQ(received, 0);
}

TEST_F_POOL(pool_test, waiting_for_a_buffer_can_time_out, small()) {
  const std::vector<buffer> all = co_await take_all(source);
  EXPECT_TRUE(test::failed_with(
      co_await test::failure_of(with_timeout(std::chrono::milliseconds(1), source.allocate(1))), errc::timed_out,
      "allocate 1 bytes from the send budget of a pool on recording: "
      "65536 of at most 65536 bytes are in use"));
}

TEST_F(pool_test, who_waits_for_seconds_is_reported_once_with_what_is_in_use) {
  test::manual_clock time(test::manual_clock::between_moves::goes);
  executor_options options{.clock = &time};
  const test::report_list reports;
  std::vector<std::string> said;
  const auto expect_said = [&](std::size_t count) {
    for (const auto& each : reports.take()) {
      EXPECT_EQ(each.kind, report_kind::warning);
      said.push_back(each.line);
    }
    EXPECT_EQ(said.size(), count);
  };
  const auto pass = [&]() -> task<> {
    for (int i = 0; i < 3; ++i) {
      time.advance(std::chrono::seconds(4));
      for (int turn = 0; turn < 20; ++turn) co_await yield();
    }
  };
  const auto body = [&]() -> task<> {
    pool source(domain, small());
    std::vector<buffer> all = co_await take_all(source);
    std::vector<int> order;
    event release;
    release.set();
    const auto episode = [&](scope& children) -> task<> {
      children.spawn(wait_for(source, 16 * kib, order, 0, release), "hungry");
      children.spawn(wait_for(source, 16 * kib, order, 1, release), "thirsty");
      co_await until_waiting(source, 2);
      co_await pass();
      all.pop_back();
    };
    for (std::size_t episodes = 1; episodes <= 2; ++episodes) {
      co_await with_scope(on_failure::stop_siblings, episode);
      expect_said(episodes);
      all.push_back(co_await source.allocate(16 * kib));
    }
    co_await pass();
    EXPECT_EQ(said.size(), 2U) << "nobody waits";
  };
  test::run(body, options);
  ASSERT_FALSE(said.empty());
  EXPECT_NE(said[0].find("task hungry"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("an allocation of 16384 bytes at "), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("pool_test.cpp:"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("send budget of a pool of recording: 65536 of at most 65536 bytes are in use, 0 more are kept "
                         "at hand by executors, 2 allocations wait"),
            std::string::npos)
      << said[0];
  if constexpr (remembers_buffers) {
    EXPECT_NE(said[0].find("4 buffers, of 65536 bytes in all, were allocated at "), std::string::npos) << said[0];
  }
}

TEST_F(pool_test, who_is_served_in_time_is_not_reported_however_long_the_queue_lasts) {
  test::manual_clock time;
  executor_options options{.clock = &time};
  const test::report_list reports;
  const auto body = [&]() -> task<> {
    pool source(domain, small());
    std::vector<buffer> all = co_await take_all(source);
    std::vector<int> order;
    event release;
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(wait_for(source, 16 * kib, order, 0, release));
      co_await until_waiting(source, 1);
      for (int name = 1; name <= 4; ++name) {
        time.advance(std::chrono::milliseconds(1600));
        children.spawn(wait_for(source, 16 * kib, order, name, release));
        co_await until_waiting(source, 2);
        all.pop_back();
        co_await until_waiting(source, 1);
        for (int turn = 0; turn < 20; ++turn) co_await yield();
      }
      children.request_stop();
    });
  };
  test::run([&]() -> task<> { static_cast<void>(co_await as_result(body())); }, options);
  EXPECT_TRUE(reports.take().empty());
}

// Waits for several buffers, notes when they come, and gives them back when told.
task<> wait_for_all(pool& source, std::size_t count, std::vector<int>& order, int name, event& release) {
  const std::vector<buffer> all = co_await source.allocate_all(count, 16 * kib);
  EXPECT_EQ(all.size(), count);
  order.push_back(name);
  co_await release.wait();
}

TEST_F_POOL(pool_test, several_buffers_are_had_all_or_none_and_in_order_of_coming, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::vector<int> order;
  std::array<event, 2> release;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait_for_all(source, 3, order, 0, release[0]));
    co_await until_waiting(source, 1);
    children.spawn(wait_for_all(source, 3, order, 1, release[1]));
    co_await until_waiting(source, 2);
    while (!all.empty()) {
      all.pop_back();
      for (int turn = 0; turn < 20; ++turn) co_await yield();
    }
    EXPECT_EQ(order, std::vector{0});
    release[0].set();
    release[1].set();
  });
  EXPECT_EQ(order, (std::vector{0, 1}));
  const std::vector<buffer> again = co_await source.allocate_all(4, 16 * kib);
  EXPECT_EQ(source.statistics().send.in_use_bytes, 64 * kib);
  EXPECT_TRUE((co_await source.allocate_all(0, 16 * kib)).empty());
}

TEST_F_POOL(pool_test, who_waits_for_one_buffer_has_it_before_those_who_gather_several, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::vector<int> order;
  event release;
  release.set();
  event kept;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait_for_all(source, 3, order, 0, release));
    co_await until_waiting(source, 1);
    all.resize(2);
    co_await yield();
    EXPECT_TRUE(order.empty());
    children.spawn(wait_for(source, 32 * kib, order, 1, kept));  // of what the first has gathered
    while (order.empty()) co_await yield();
    all.clear();
    for (int turn = 0; turn < 20; ++turn) co_await yield();
    EXPECT_EQ(order, std::vector{1});
    kept.set();
  });
  EXPECT_EQ(order, (std::vector{1, 0}));
}

TASK_TEST_F(pool_test, what_has_been_gathered_goes_back_when_it_is_no_longer_waited_for) {
  std::optional<pool> source(std::in_place, domain, small());
  std::vector<buffer> all = co_await take_all(*source);
  const auto give_up = [&]() -> task<> {
    EXPECT_TRUE(test::failed_with(
        co_await test::failure_of(with_timeout(std::chrono::milliseconds(1), source->allocate_all(3, 16 * kib))),
        errc::timed_out, "allocate 3 buffers of 16384 bytes from the send budget"));
  };
  all.resize(2);
  co_await give_up();
  EXPECT_EQ(source->statistics().send.waiting, 0U);
  EXPECT_EQ(source->statistics().send.in_use_bytes, 32 * kib);
  std::vector<int> order;
  event release;
  const auto destroyed = [&](std::vector<int>& into) -> sim::loose_task {
    const auto got = co_await source->allocate_all(3, 16 * kib);
    into.push_back(static_cast<int>(got.size()));
  };
  {
    const sim::loose_task waiter = destroyed(order);
    waiter.start(*executor::current());
    co_await until_waiting(*source, 1);
  }
  EXPECT_EQ(source->statistics().send.in_use_bytes, 32 * kib);
  const auto told = [&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(source->allocate_all(3, 16 * kib)), errc::closed);
  };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(told());
    co_await until_waiting(*source, 1);
    source.reset();
  });
  EXPECT_TRUE(order.empty());
}

TASK_TEST_F(pool_test, more_buffers_than_a_share_can_ever_yield_are_refused_at_once_and_as_many_are_had) {
  const pool_options options = of(700 * kib, 128 * kib);
  for (const std::size_t bytes : {100U, 3000U, 5000U, 20'000U, 40'000U, 100'000U, 200'000U}) {
    pool source(domain, options);
    const std::size_t most = source.max_buffers(bytes);
    EXPECT_GT(most, 0U);
    EXPECT_TRUE(test::failed_with(co_await test::failure_of(source.allocate_all(most + 1, bytes)), errc::no_memory,
                                  std::to_string(most)));
    const std::vector<buffer> all = co_await source.allocate_all(most, bytes);
    EXPECT_EQ(all.size(), most);
  }
}

TEST_F_POOL(pool_test, who_gathers_is_told_at_once_that_an_arena_cannot_be_had_if_nobody_else_has_any, of(256 * kib)) {
  EXPECT_TRUE(co_await source.allocate(16 * kib));
  memory.failure = ENOMEM;
  EXPECT_EQ(co_await test::code_of(source.allocate_all(6, 16 * kib)), errc::no_memory);
  EXPECT_EQ(source.statistics().failures, 1U);
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
  memory.failure = 0;
  EXPECT_EQ((co_await source.allocate_all(6, 16 * kib)).size(), 6U);
}

TEST_F_POOL(pool_test, neither_share_starves_the_other, small()) {
  const std::vector<buffer> sends = co_await take_all(source, budget::send);
  std::vector<buffer> receives = co_await take_all(source, budget::receive);
  EXPECT_FALSE(source.try_allocate(1, budget::send));
  EXPECT_FALSE(source.try_allocate(1, budget::receive));
  receives.pop_back();
  EXPECT_FALSE(source.try_allocate(16 * kib, budget::send));
  const buffer again = co_await source.allocate(16 * kib, budget::receive);
  EXPECT_EQ(source.statistics().send.in_use_bytes, 64 * kib);
  EXPECT_EQ(source.statistics().receive.in_use_bytes, 64 * kib);
}

TEST_F_POOL(pool_test, try_allocate_never_waits_but_has_memory_made, large()) {
  EXPECT_FALSE(source.try_allocate(1000));
  std::optional<buffer> made;
  while (!(made = source.try_allocate(1000))) co_await yield();
  EXPECT_EQ(made->size(), 1000U);
}

TEST_F(pool_test, try_allocate_works_where_no_executor_runs) {
  pool source(domain, large());
  std::optional<buffer> made = source.try_allocate(1000);
  if (!made) made = source.try_allocate(1000);
  ASSERT_TRUE(made);
  made->bytes()[0] = std::byte{1};
}

TEST_F_POOL(pool_test, memory_stays_below_the_limit_and_follows_the_load_down, of(16 * mib, mib)) {
  std::vector<buffer> held;
  for (int i = 0; i < 500; ++i) held.push_back(co_await source.allocate(16 * kib));
  EXPECT_GE(source.statistics().send.arena_bytes, 500 * 16 * kib);
  held.clear();
  while (source.statistics().send.arena_bytes > mib) co_await yield();
  EXPECT_EQ(source.statistics().send.arenas, 1U);
  EXPECT_EQ(memory.mapped, mib);
  EXPECT_LE(memory.most_mapped, 16 * mib);
}

TEST_F(pool_test, an_arena_that_is_being_made_or_freed_is_pending) {
  test::held_mappings kernel;
  test::run([&]() -> task<> {
    pool source(domain,
                {.max_bytes = 128 * kib, .arena_bytes = 64 * kib, .huge_pages = false, .system_calls = &kernel});
    EXPECT_EQ(source.statistics().send.pending_bytes, 0U);
    kernel.hold();
    EXPECT_FALSE(source.try_allocate(1000));
    EXPECT_EQ(source.statistics().send.pending_bytes, 64 * kib);
    EXPECT_EQ(source.statistics().receive.pending_bytes, 0U);
    kernel.let_go();
    const buffer one = co_await source.allocate(1000);
    EXPECT_EQ(source.statistics().send.arena_bytes, 64 * kib);
    EXPECT_EQ(source.statistics().send.pending_bytes, 0U);
  });
}

TEST_F_POOL(pool_test, the_next_arena_is_made_before_anybody_has_to_wait_for_it, of(16 * mib, mib)) {
  std::vector<buffer> held;
  for (int i = 0; i < 50; ++i) held.push_back(co_await source.allocate(16 * kib));
  while (source.statistics().send.arenas < 2) co_await yield();
  EXPECT_EQ(source.statistics().send.arenas, 2U);
}

TEST_F_POOL(pool_test, a_buffer_larger_than_an_arena_gets_one_of_its_own_and_gives_it_back, large()) {
  {
    const buffer big = co_await source.allocate(9 * mib + 1);
    EXPECT_GE(big.capacity(), 9 * mib + 1);
    big.bytes().back() = std::byte{1};
    EXPECT_EQ(source.statistics().send.arenas, 1U);
  }
  while (memory.mapped != 0) co_await yield();
  const buffer small_one = co_await source.allocate(1);
  EXPECT_EQ(source.statistics().send.arenas, 1U);
}

TEST_F_POOL(pool_test, an_idle_arena_makes_room_for_a_buffer_that_would_not_fit_beside_it, of(256 * kib)) {
  { const buffer one = co_await source.allocate(1000); }
  const buffer all = co_await source.allocate(128 * kib);
  EXPECT_EQ(all.size(), 128 * kib);
  EXPECT_LE(memory.most_mapped, 256 * kib);
}

TEST_F_POOL(pool_test, the_last_bit_of_the_limit_is_used_too, of(320 * kib, 128 * kib)) {
  std::vector<buffer> held;
  for (int i = 0; i < 10; ++i) held.push_back(co_await source.allocate(16 * kib));
  EXPECT_EQ(source.statistics().send.in_use_bytes, 160 * kib);
  EXPECT_FALSE(source.try_allocate(1));
}

TEST_F_POOL(pool_test, memory_that_cannot_be_had_is_told_to_the_waiter_with_the_limit, small()) {
  memory.failure = ENOMEM;
  const auto failure = co_await test::failure_of(source.allocate(100));
  EXPECT_TRUE(test::failed_with(failure, errc::no_memory, "Cannot allocate memory"));
  EXPECT_TRUE(test::says(failure, "limit is 65536 bytes"));
  memory.failure = 0;
  const buffer later = co_await source.allocate(100);
  EXPECT_TRUE(later);
  EXPECT_FALSE(source.statistics().last_failure.empty());
}

TEST_F_POOL(pool_test, a_registration_that_is_refused_for_want_of_memory_says_so_once_and_leaks_no_mapping, small()) {
  domain->refuse = true;
  const auto failure = co_await test::failure_of(source.allocate(100));
  EXPECT_TRUE(test::failed_with(failure, errc::no_memory));
  EXPECT_TRUE(test::words_of(failure).ends_with("recording: refused: out of memory")) << test::words_of(failure);
}

TEST_F_POOL(pool_test, where_memory_is_in_use_a_failure_to_get_more_is_waited_out, of(mib)) {
  std::vector<std::vector<buffer>> held;
  for (std::size_t arenas = 2; arenas <= 6; ++arenas) {
    held.push_back(co_await take_all(source));
    while (arenas <= 5 && source.statistics().send.arenas < arenas) co_await yield();  // the one made ahead
  }
  memory.failure = ENOMEM;
  std::vector<int> order;
  event release;
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait_for(source, 64 * kib, order, 0, release));
    while (source.statistics().last_failure.empty() && order.empty()) co_await yield();
    held.erase(held.begin(), held.begin() + 2);
    while (order.empty()) co_await yield();
    release.set();
  });
  EXPECT_EQ(order.size(), 1U);
}

task<> until_failures(const pool& source, std::uint64_t count) {
  while (source.statistics().failures < count) co_await yield();
}

// Room for two arenas, of which one is all taken, and the other cannot be had.
task<> get_stuck(pool& source, std::vector<buffer>& held, const std::function<void()>& break_it) {
  for (int i = 0; i < 3; ++i) held.push_back(co_await source.allocate(16 * kib));
  break_it();
  held.push_back(co_await source.allocate(16 * kib));
  co_await until_failures(source, 1);
}

TEST_F(pool_test, who_waits_in_vain_for_what_is_its_own_has_an_arena_tried_again_until_there_is_one) {
  struct cause {
    const char* words;
    std::function<void(bool)> set;
  };
  const std::array causes = {
      cause{"Cannot allocate memory", [&](bool on) { memory.failure = on ? ENOMEM : 0; }},
      cause{"refused", [&](bool on) { domain->refuse = on; }},
  };
  for (const cause& each : causes) {
    test::run([&]() -> task<> {
      pool source(domain, of(256 * kib));
      const std::function<void()> fails = [&] { each.set(true); };
      std::vector<buffer> held;
      co_await get_stuck(source, held, fails);
      std::vector<int> order;
      event release;
      release.set();
      co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
        children.spawn(wait_for(source, 16 * kib, order, 0, release));
        co_await until_failures(source, 4);
        EXPECT_TRUE(order.empty());
        EXPECT_NE(source.statistics().last_failure.find(each.words), std::string::npos);
        each.set(false);
      });
      EXPECT_EQ(order.size(), 1U);
      EXPECT_EQ(held.size(), 4U);
    });
    EXPECT_EQ(memory.mapped, 0U);
  }
}

TEST_F_POOL(pool_test, an_arena_is_tried_again_for_who_is_next_when_the_first_stops_waiting, of(256 * kib)) {
  const std::function<void()> fails = [&] { memory.failure = ENOMEM; };
  std::vector<buffer> held;
  co_await get_stuck(source, held, fails);
  std::vector<int> order;
  event release;
  release.set();
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    int received = 0;
    {
      const sim::loose_task first = co_await waiting_loosely(source, received, 1);
      children.spawn(wait_for(source, 16 * kib, order, 1, release));
      co_await until_waiting(source, 2);
      co_await until_failures(source, 2);
      while (!first.at_rest()) co_await yield();
    }
    EXPECT_EQ(received, 0);
    co_await until_failures(source, source.statistics().failures + 3);
    memory.failure = 0;
  });
  EXPECT_EQ(order, std::vector{1});
}

TEST_F(pool_test, metrics_tell_of_arenas_that_could_not_be_made) {
  pool_statistics seen;
  seen.failures = 3;
  metrics all;
  add_to(all, seen, "big");
  EXPECT_NE(all.text().find("weft_pool_failures_total{pool=\"big\"} 3"), std::string::npos) << all.text();
}

TASK_TEST_F(pool_test, a_pool_may_go_while_an_arena_is_to_be_tried_again) {
  std::optional<pool> source(std::in_place, domain, of(256 * kib));
  const std::function<void()> fails = [&] { memory.failure = ENOMEM; };
  std::vector<buffer> held;
  co_await get_stuck(*source, held, fails);
  int received = 0;
  {
    const sim::loose_task waiter = allocate_loosely(*source, received);
    waiter.start(*executor::current());
    co_await until_failures(*source, 5);
    while (!waiter.at_rest()) co_await yield();
  }
  source.reset();
  co_await yield();
  EXPECT_EQ(received, 0);
}

TEST_F(pool_test, a_buffer_outlives_its_pool_and_takes_the_arena_with_it) {
  buffer survivor;
  test::run([&]() -> task<> {
    pool source(domain, small());
    survivor = co_await source.allocate(1000);
    std::memset(survivor.data(), 7, survivor.size());
  });
  EXPECT_EQ(survivor.bytes()[999], std::byte{7});
  EXPECT_EQ(memory.mapped, 64 * kib);
  EXPECT_EQ(domain->deregistered, 0);
  survivor = buffer();
  EXPECT_EQ(memory.mapped, 0U);
  EXPECT_EQ(domain->deregistered, 1);
}

TASK_TEST_F(pool_test, who_waits_when_the_pool_goes_is_told_so) {
  std::optional<pool> source(std::in_place, domain, small());
  std::vector<buffer> all = co_await take_all(*source);
  std::error_code code;
  const auto wait = [&]() -> task<> { code = co_await test::code_of(source->allocate(1)); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait());
    co_await until_waiting(*source, 1);
    source.reset();
  });
  EXPECT_EQ(code, errc::closed);
}

TEST_F(pool_test, a_pool_that_goes_while_an_arena_is_being_made_leaks_nothing) {
  test::held_first worker;
  domain->while_registering = [&] { worker.pass(); };
  test::run([&]() -> task<> {
    {
      pool source(domain, small());
      EXPECT_FALSE(source.try_allocate(1));
      const auto wait = [&] { worker.wait(); };
      co_await offload(wait);
    }
    worker.let_go();
  });
  EXPECT_EQ(memory.mapped, 0U);
  EXPECT_EQ(domain->registered, 1);
  EXPECT_EQ(domain->deregistered, 1);
}

TASK_TEST_F(pool_test, one_executor_can_use_many_pools_one_after_another) {
  for (int round = 0; round < 50; ++round) {
    pool source(domain, small());
    const buffer made = co_await source.allocate(500);
    made.bytes()[0] = std::byte{1};
  }
  while (memory.mapped != 0) co_await yield();
}

TEST_F_POOL(pool_test, what_is_at_hand_is_not_taken_before_those_who_wait, small()) {
  const buffer in_use = co_await source.allocate(1 * kib);
  { const buffer freed = co_await source.allocate(1 * kib); }
  EXPECT_GT(source.statistics().send.cached_bytes, 0U);
  std::vector<int> order;
  event release;
  static_cast<void>(co_await as_result(with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(wait_for(source, 64 * kib, order, 0, release));
    co_await until_waiting(source, 1);
    EXPECT_FALSE(source.try_allocate(1 * kib));
    children.spawn(wait_for(source, 1 * kib, order, 1, release));
    co_await until_waiting(source, 2);
    while (source.statistics().send.cached_bytes != 0) co_await yield();
    for (int turn = 0; turn < 100; ++turn) co_await yield();
    EXPECT_TRUE(order.empty());
    children.request_stop();
  })));
  const std::optional<buffer> again = source.try_allocate(1 * kib);
  EXPECT_TRUE(again);
}

TEST_F_POOL(pool_test, an_executor_keeps_at_most_an_eighth_of_a_share_at_hand, of(256 * kib)) {
  std::minstd_rand random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::optional<buffer>> held;
    for (int i = 0; i < 20; ++i) held.push_back(source.try_allocate(1 + random() % (6 * kib)));
    held.clear();
    EXPECT_LE(source.statistics().send.cached_bytes, 16 * kib);
    co_await yield();
  }
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
}

TEST_F(pool_test, a_buffer_may_be_freed_after_its_executor_on_another_one_or_on_none) {
  pool source(domain, small());
  std::vector<buffer> left;
  const auto fill = [&]() -> task<> {
    for (int i = 0; i < 3; ++i) left.push_back(co_await source.allocate(1 * kib));
  };
  const auto free_one = [&]() -> task<> {
    left.pop_back();
    EXPECT_EQ(source.statistics().send.in_use_bytes, left.size() * kib);
    const buffer again = co_await source.allocate(1 * kib);
    EXPECT_EQ(source.statistics().send.in_use_bytes, (left.size() + 1) * kib);
  };
  test::run(fill);
  test::run(free_one);  // the one before has left its place to it
  left.pop_back();
  EXPECT_EQ(source.statistics().send.in_use_bytes, kib);
  on_another_thread([&] { test::run(free_one); });
  EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
  EXPECT_EQ(source.statistics().send.cached_bytes, 0U);
}

TEST_F(pool_test, executors_that_take_turns_on_a_thread_do_not_take_from_one_another) {
  pool source(domain, small());
  executor one;
  executor other;
  for (int round = 0; round < 3; ++round) {
    for (executor* const home : {&one, &other}) {
      home->run([&]() -> task<> {
        const buffer first = co_await source.allocate(1 * kib);
        const std::optional<buffer> second = source.try_allocate(1 * kib);
        EXPECT_TRUE(second);
        EXPECT_EQ(source.statistics().send.in_use_bytes, 2 * kib);
      }());
      EXPECT_EQ(source.statistics().send.in_use_bytes, 0U);
    }
  }
}

TEST_F(pool_test, freed_memory_shows_when_it_is_used) {
  if (!remembers_buffers) GTEST_SKIP() << "only with assertions or the address sanitizer, and not beside the thread's";
  test::run([&]() -> task<> {
    pool source(domain, small());
    std::byte* where = nullptr;
    {
      const buffer made = co_await source.allocate(1000);
      where = made.data();
      std::memset(where, 7, 1000);
    }
#if defined(WEFT_TEST_ASAN)
    EXPECT_TRUE(__asan_address_is_poisoned(where));
#else
    EXPECT_EQ(where[999], std::byte{0xDB});
#endif
  });
}

TASK_TEST_F(pool_test, huge_pages_that_are_not_to_be_had_are_replaced_and_the_reason_is_told) {
  pool_options options = large();
  options.huge_pages = true;
  pool source(domain, options);
  const buffer made = co_await source.allocate(mib);
  made.bytes()[0] = std::byte{1};
  const pool_statistics now = source.statistics();
  EXPECT_EQ(now.pages == page_kind::huge, now.pages_reason.empty());
  if (now.pages == page_kind::transparent) {
    EXPECT_EQ(memory.mapped, 4 * mib);
  }
}

TEST_F(pool_test, tells_what_is_left_of_it_and_where_that_was_allocated) {
  if (!remembers_buffers) GTEST_SKIP() << "only with assertions or the address sanitizer, and not beside the thread's";
  std::vector<buffer> left;
  ::testing::internal::CaptureStderr();
  unsigned line = 0;
  test::run([&]() -> task<> {
    pool source(domain, small());
    const buffer freed = co_await source.allocate(100);
    line = __LINE__ + 1;
    for (int i = 0; i < 2; ++i) left.push_back(co_await source.allocate(1 * kib));
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string where = std::string("pool_test.cpp:") + std::to_string(line) + "\n";
  EXPECT_NE(said.find("before 2 of its buffers, of 2048 bytes"), std::string::npos) << said;
  EXPECT_NE(said.find(where), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(pool_test, has_memory_near_its_device_unless_it_is_told_otherwise) {
  test::memory_with_huge_pages kernel;
  domain_capabilities abilities = recording_domain::everything;
  abilities.numa_node = 2;
  const auto near = std::make_shared<recording_domain>(abilities);
  test::run([&]() -> task<> {
    pool source(near, {.max_bytes = 128 * kib, .arena_bytes = 64 * kib, .system_calls = &kernel});
    { const buffer made = co_await source.allocate(10); }
    EXPECT_EQ(source.statistics().node, 2);
    pool elsewhere(near, {.max_bytes = 128 * kib, .arena_bytes = 64 * kib, .numa_node = -1, .system_calls = &kernel});
    { const buffer made = co_await elsewhere.allocate(10); }
    EXPECT_EQ(elsewhere.statistics().node, -1);
  });
  EXPECT_EQ(kernel.bound_to, std::vector<unsigned long>{1UL << 2});
}

TASK_TEST_F(pool_test, an_arena_of_odd_size_has_small_pages_and_says_why) {
  pool_options options = small();
  options.huge_pages = true;
  pool source(domain, options);
  const buffer made = co_await source.allocate(10);
  EXPECT_EQ(source.statistics().pages, page_kind::small);
  EXPECT_NE(source.statistics().pages_reason.find("2 MiB"), std::string::npos);
}

TEST(pool, of_a_domain_that_pins_respects_the_locked_memory_limit_and_says_so) {
  const pid_t child = test::fork_for([] {
    test::limit_locked_memory(mib);
    domain_capabilities capabilities = recording_domain::everything;
    const pool unpinned(std::make_shared<recording_domain>(capabilities), {.max_bytes = 8 * mib});
    capabilities.pins = true;
    const pool pinned(std::make_shared<recording_domain>(capabilities), {.max_bytes = 8 * mib});
    const bool right = unpinned.max_buffer_bytes() == 4 * mib && unpinned.statistics().max_bytes_reason.empty() &&
                       pinned.max_buffer_bytes() == mib / 4 &&
                       pinned.statistics().max_bytes_reason.find("ulimit -l") != std::string::npos;
    return right ? 0 : 1;
  });
  EXPECT_EQ(test::end_of(child), 0);
}

// ---- pins ----

class pin_test : public pool_test {};

TEST_F_POOL(pin_test, readers_share_a_buffer, small()) {
  buffer target = co_await source.allocate(100);
  EXPECT_FALSE(target.in_use());
  result<pin> first = pin::share(target);
  const result<pin> second = pin::share(target);
  EXPECT_TRUE(first && second);
  EXPECT_TRUE(target.in_use());
  const auto refused = pin::exclusive(target);
  EXPECT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), errc::buffer_in_use);
}

TEST_F_POOL(pin_test, a_writer_has_a_buffer_alone, small()) {
  buffer target = co_await source.allocate(100);
  {
    const result<pin> writer = pin::exclusive(target);
    EXPECT_TRUE(writer);
    EXPECT_EQ(pin::share(target).error().code(), errc::buffer_in_use);
    EXPECT_EQ(pin::exclusive(target).error().code(), errc::buffer_in_use);
    EXPECT_EQ(writer->bytes().data(), target.data());
    EXPECT_EQ(writer->slice().size(), 100U);
  }
  EXPECT_FALSE(target.in_use());
  EXPECT_TRUE(pin::exclusive(target));
}

TEST_F_POOL(pin_test, a_buffer_that_was_moved_from_cannot_be_pinned, small()) {
  buffer target = co_await source.allocate(100);
  const buffer moved = std::move(target);
  EXPECT_EQ(pin::share(target).error().code(), errc::invalid_argument);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(pin::exclusive(target).error().code(), errc::invalid_argument);
}

TEST_F_POOL(pin_test, a_buffer_destroyed_while_pinned_goes_back_only_with_its_last_pin, small()) {
  std::vector<buffer> all = co_await take_all(source);
  std::byte* const where = all.back().data();
  result<pin> first = pin::share(all.back());
  result<pin> second = pin::share(all.back());
  all.pop_back();
  EXPECT_FALSE(source.try_allocate(16 * kib));
  std::memset(where, 1, 16 * kib);  // still ours
  first->reset();
  EXPECT_FALSE(source.try_allocate(16 * kib));
  EXPECT_EQ(source.statistics().send.in_use_bytes, 64 * kib);
  second->reset();
  const std::optional<buffer> again = source.try_allocate(16 * kib);
  EXPECT_TRUE(again);
  if (again) {
    EXPECT_EQ(again->data(), where);
  }
}

TEST_F_POOL(pin_test, a_pin_that_was_moved_counts_once, small()) {
  buffer target = co_await source.allocate(100);
  result<pin> held = pin::exclusive(target);
  pin other = std::move(*held);
  pin third;
  third = std::move(other);
  EXPECT_TRUE(target.in_use());
  third.reset();
  EXPECT_FALSE(target.in_use());
}

}  // namespace
}  // namespace weft::mr

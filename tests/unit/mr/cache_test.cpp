// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache.hpp>
#include <weft/mr/system/mapped_ranges.hpp>

#include <fcntl.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstdlib>
#include <map>

#include "../../sim/loose_task.hpp"
#include "kit/child.hpp"
#include "kit/failure.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::expect_all_deregistered;
using test::recording_domain;

constexpr usage sending = usage::send | usage::write_src;

class cache_test : public ::testing::Test {
 protected:
  /// Nothing is left of any test, nor was there more than it says.
  void TearDown() override {
    expect_all_deregistered(*domain);
    EXPECT_EQ(domain->registered, in_all.value_or(domain->registered));
  }

  [[nodiscard]] std::span<std::byte> part(std::size_t from, std::size_t length) {
    return std::span(memory).subspan(from, length);
  }

  /// Leases and lets go.
  task<std::uint64_t> touch(mr::cache& cache, std::span<std::byte> range, usage purpose = sending) {
    const lease held = co_await cache.lease(range, purpose);
    co_return held.generation();
  }
  task<std::error_code> failure_of(mr::cache& cache, std::span<std::byte> range, usage purpose = sending) {
    return test::code_of(cache.lease(range, purpose));
  }

  void with_cache(const test::test_script<mr::cache&>& script, const cache_options& options = {}) {
    test::run([&]() -> task<> {
      mr::cache cache(*domain, options);
      co_await script(cache);
    });
  }

  std::shared_ptr<recording_domain> domain = std::make_shared<recording_domain>();
  std::vector<std::byte> memory = std::vector<std::byte>(10000);
  std::optional<int> in_all;  // registrations, until the cache has gone
};

#define TEST_F_CACHE(fixture, name, ...) \
  TEST_F_SCRIPT(fixture, name, (mr::cache & cache), with_cache(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

TEST_F_CACHE(cache_test, leases_memory_that_is_registered_without_registering_it_again) {
  const std::uint64_t first = co_await touch(cache, part(0, 4096));
  EXPECT_EQ(co_await touch(cache, part(0, 4096)), first);
  EXPECT_EQ(co_await touch(cache, part(100, 50)), first);
  EXPECT_EQ(co_await touch(cache, part(4000, 96)), first);
  EXPECT_NE(co_await touch(cache, part(4000, 97)), first);
  EXPECT_EQ(domain->registered, 2);
  EXPECT_EQ(cache.statistics().hits, 3u);
  EXPECT_EQ(cache.statistics().misses, 2u);
}

TEST_F_CACHE(cache_test, a_lease_names_the_memory_asked_for_and_its_registration) {
  const lease whole = co_await cache.lease(part(0, 4096), sending);
  const lease held = co_await cache.lease(part(100, 50), sending);
  EXPECT_EQ(held.bytes().data(), memory.data() + 100);
  EXPECT_EQ(held.slice().size(), 50u);
  EXPECT_EQ(held.slice().record()->registration.local_key, whole.slice().record()->registration.local_key);
  EXPECT_EQ(held.slice().domain(), domain.get());
  EXPECT_EQ(held.slice().usage(), sending);
  EXPECT_TRUE(held.current());
}

TEST_F_CACHE(cache_test, a_hit_allocates_nothing) {
  co_await touch(cache, part(0, 4096));
  const std::size_t before = test::allocations();
  for (int i = 0; i < 100; ++i) {
    const lease held = co_await cache.lease(part(0, 4096), sending);
  }
  EXPECT_EQ(test::allocations(), before);
}

TEST_F_CACHE(cache_test, usages_are_kept_strictly_apart) {
  co_await touch(cache, part(0, 100), sending);
  co_await touch(cache, part(0, 100), usage::send);
  EXPECT_EQ(domain->registered, 2);
  EXPECT_EQ(domain->last_options.usage, usage::send);
}

TEST_F_CACHE(cache_test, what_cannot_be_leased_is_refused_before_anything_happens) {
  EXPECT_EQ(co_await failure_of(cache, part(0, 0)), errc::zero_length);
  EXPECT_EQ(co_await failure_of(cache, std::span(static_cast<std::byte*>(nullptr), 5)), errc::null_address);
  EXPECT_EQ(co_await failure_of(cache, part(0, 1), static_cast<usage>(1 << 15)), errc::unknown_usage);
  EXPECT_EQ(co_await failure_of(cache, part(0, 1), usage::send | usage::write_dst), errc::access_denied);
  EXPECT_EQ(domain->registered, 0);
  EXPECT_EQ(cache.statistics().misses, 0u);
}

TEST_F_CACHE(cache_test, memory_that_wraps_around_is_no_part_of_what_is_kept) {
  co_await touch(cache, part(0, 4096));
  EXPECT_EQ(co_await failure_of(cache, {memory.data() + 64, SIZE_MAX - 31}), errc::out_of_range);
}

TEST_F(cache_test, registers_on_a_worker_and_deregisters_on_one) {
  const std::thread::id here = std::this_thread::get_id();
  test::run([&]() -> task<> {
    mr::cache cache(*domain);
    co_await touch(cache, part(0, 100));
    EXPECT_NE(domain->last_registration, here);
    cache.invalidate(part(0, 100));
  });
  EXPECT_EQ(domain->deregistered, 1);
  EXPECT_NE(domain->last_deregistration, here);
}

TEST_F_CACHE(cache_test, many_who_ask_for_one_range_share_one_registration) {
  int served = 0;
  const auto ask = [&](std::size_t from, std::size_t length) -> task<> {
    const lease held = co_await cache.lease(part(from, length), sending);
    ++served;
  };
  std::latch all_have_asked(1);
  domain->while_registering = [&] { all_have_asked.wait(); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    for (std::size_t i = 0; i < 50; ++i) children.spawn(ask(i, 4096 - i));
    co_await yield();
    all_have_asked.count_down();
  });
  EXPECT_EQ(served, 50);
  EXPECT_EQ(domain->registered, 1);
  EXPECT_EQ(cache.statistics().shared, 49u);
}

TEST_F_CACHE(cache_test, a_failure_is_told_to_all_who_wait_and_not_kept) {
  domain->refuse = true;
  EXPECT_EQ(co_await failure_of(cache, part(0, 100)), errc::no_memory);
  EXPECT_EQ(cache.statistics().regions, 0u);
  domain->refuse = false;
  EXPECT_EQ(co_await failure_of(cache, part(0, 100)), std::error_code());
}

TEST_F_CACHE(cache_test, a_registration_for_which_there_is_no_memory_is_tried_again_once_the_idle_ones_have_gone) {
  for (std::size_t i = 0; i < 5; ++i) co_await touch(cache, part(i * 100, 100));
  const lease held = co_await cache.lease(part(0, 100), sending);
  domain->while_registering = [&] {
    if (domain->deregistered < 4) throw error(errc::no_memory, "the limit");
  };
  co_await touch(cache, part(5000, 100));
  domain->while_registering = [] {};
  EXPECT_EQ(domain->deregistered, 4);
  EXPECT_EQ(cache.statistics().regions, 2u);
  EXPECT_TRUE(held.current());
}

TEST_F_CACHE(cache_test, what_was_not_leased_for_the_longest_time_gives_way, {.max_regions = 2}) {
  const std::uint64_t first = co_await touch(cache, part(0, 10));
  const std::uint64_t second = co_await touch(cache, part(10, 10));
  EXPECT_EQ(co_await touch(cache, part(0, 10)), first);
  co_await touch(cache, part(20, 10));
  EXPECT_EQ(co_await touch(cache, part(0, 10)), first);
  EXPECT_NE(co_await touch(cache, part(10, 10)), second);
  EXPECT_EQ(cache.statistics().regions, 2u);
}

TEST_F_CACHE(cache_test, what_is_leased_while_another_one_gives_way_counts_as_leased_then, {.max_regions = 3}) {
  std::optional<lease> first(co_await cache.lease(part(0, 10), sending));
  const std::uint64_t generation = first->generation();
  co_await touch(cache, part(10, 10));
  const std::uint64_t third = co_await touch(cache, part(20, 10));
  co_await touch(cache, part(30, 10));  // in the place of the second one
  first.reset();
  co_await touch(cache, part(40, 10));  // in that of the third
  EXPECT_EQ(co_await touch(cache, part(0, 10)), generation);
  EXPECT_NE(co_await touch(cache, part(20, 10)), third);
}

TEST_F_CACHE(cache_test, a_cache_that_is_leased_as_a_whole_keeps_no_more_and_goes_on_once_some_has_ended,
             {.max_regions = 300}) {
  std::vector<lease> held;
  for (std::size_t i = 0; i < 300; ++i) held.push_back(co_await cache.lease(part(i * 10, 10), sending));
  co_await touch(cache, part(9000, 10));
  EXPECT_EQ(cache.statistics().not_kept, 1u);
  held.erase(held.begin() + 150);
  // It passes a bounded number over at a time.
  for (int i = 0; i < 10 && cache.statistics().evictions == 0; ++i) co_await touch(cache, part(9000, 10));
  EXPECT_EQ(cache.statistics().evictions, 1u);
  EXPECT_EQ(cache.statistics().regions, 300u);
}

TEST_F_CACHE(cache_test, keeps_no_more_bytes_than_it_may, {.max_bytes = 1000}) {
  for (std::size_t i = 0; i < 9; ++i) {
    co_await touch(cache, part(i * 1000, 400));
    EXPECT_LE(cache.statistics().bytes, 1000u);
  }
  co_await touch(cache, part(0, 1001));  // larger than all of it
  EXPECT_EQ(cache.statistics().not_kept, 1u);
  EXPECT_EQ(cache.statistics().regions, 2u);
}

TEST_F_CACHE(cache_test, with_a_limit_of_no_regions_keeps_none, {.max_regions = 0}) {
  co_await touch(cache, part(0, 10));
  co_await touch(cache, part(0, 10));
  EXPECT_EQ(domain->registered, 2);
  EXPECT_EQ(cache.statistics().regions, 0u);
}

TEST_F_CACHE(cache_test, what_is_leased_never_gives_way, {.max_regions = 1}) {
  const lease held = co_await cache.lease(part(0, 10), sending);
  for (std::size_t i = 1; i < 5; ++i) co_await touch(cache, part(i * 10, 10));
  EXPECT_EQ(co_await touch(cache, part(0, 10)), held.generation());
  EXPECT_EQ(cache.statistics().not_kept, 4u);
  EXPECT_TRUE(held.current());
}

TEST_F_CACHE(cache_test, an_operation_keeps_what_it_uses_registered_when_the_lease_has_ended) {
  in_all = 1;
  lease held = co_await cache.lease(part(0, 10), sending);
  std::optional<region_pin> operation(held.slice());
  held = lease();
  cache.invalidate(part(0, 10));
  EXPECT_EQ(domain->deregistered, 0);
  operation.reset();
}

TEST_F_CACHE(cache_test, what_was_invalidated_is_registered_anew_and_the_old_one_goes_with_its_last_lease) {
  in_all = 3;
  std::optional<lease> old(co_await cache.lease(part(0, 100), sending));
  co_await touch(cache, part(200, 100));
  cache.invalidate(part(99, 1));
  EXPECT_FALSE(old->current());
  EXPECT_NE(co_await touch(cache, part(0, 100)), old->generation());
  EXPECT_EQ(domain->deregistered, 0);
  EXPECT_EQ(cache.statistics().invalidations, 1u);
  cache.invalidate(part(100, 100));  // between the two
  EXPECT_EQ(cache.statistics().invalidations, 1u);
  old.reset();
}

TEST_F_CACHE(cache_test, a_lease_of_what_has_given_way_to_a_larger_range_is_invalidated_too) {
  in_all = 2;
  const lease small = co_await cache.lease(part(0, 4096), sending);
  const lease large = co_await cache.lease(part(0, 8192), sending);
  cache.invalidate(part(5000, 1));
  EXPECT_TRUE(small.current());
  EXPECT_FALSE(large.current());
  cache.invalidate(part(0, 1));
  EXPECT_FALSE(small.current());
}

TEST_F(cache_test, a_lease_of_what_is_not_kept_is_invalidated_too) {
  for (const cache_options& options : {cache_options{.max_regions = 0}, cache_options{.max_bytes = 50}}) {
    const auto script = [&](mr::cache& cache) -> task<> {
      const lease first = co_await cache.lease(part(0, 100), sending);
      std::optional<lease> second(co_await cache.lease(part(100, 100), sending));
      const lease third = co_await cache.lease(part(200, 100), sending);
      EXPECT_EQ(cache.statistics().regions, 0u);
      cache.invalidate(part(99, 1));
      EXPECT_FALSE(first.current());
      EXPECT_TRUE(second->current());
      second.reset();
      cache.invalidate(part(100, 200));
      EXPECT_FALSE(third.current());
    };
    with_cache(script, options);
  }
  EXPECT_EQ(domain->deregistered, 6);
}

TEST_F_CACHE(cache_test, a_registration_that_an_invalidation_has_overtaken_is_begun_anew) {
  int attempts = 0;
  domain->while_registering = [&] {
    if (++attempts == 1) cache.invalidate(part(50, 1));
  };
  const lease held = co_await cache.lease(part(0, 100), sending);
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(domain->deregistered, 1);
  EXPECT_TRUE(held.current());
  EXPECT_EQ(cache.statistics().begun_anew, 1u);
  EXPECT_EQ(cache.statistics().registered_bytes, 100u);
}

TEST_F_CACHE(cache_test, who_asks_after_an_invalidation_does_not_join_what_was_begun_before_it) {
  test::held_first first;
  domain->while_registering = [&] { first.pass(); };
  std::vector<std::uint64_t> generations;
  const auto ask = [&]() -> task<> { generations.push_back(co_await touch(cache, part(0, 100))); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(ask());
    co_await yield();
    first.wait();
    cache.invalidate(part(0, 1));
    children.spawn(ask());
    co_await yield();
    EXPECT_EQ(cache.statistics().misses, 2u);
    first.let_go();
  });
  EXPECT_EQ(generations.size(), 2u);
}

TEST_F_CACHE(cache_test, who_stops_waiting_leaves_the_registration_to_the_others) {
  std::latch go_on(1);
  domain->while_registering = [&] { go_on.wait(); };
  std::error_code stopped;
  const auto ask = [&]() -> task<> { stopped = co_await failure_of(cache, part(0, 100)); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(ask());
    co_await yield();
    children.request_stop();
  });
  EXPECT_EQ(stopped, errc::canceled);
  go_on.count_down();
  co_await touch(cache, part(0, 100));
  EXPECT_EQ(domain->registered, 1);
}

sim::loose_task lease_loosely(mr::cache& cache, std::span<std::byte> range, int& received) {
  const lease held = co_await cache.lease(range, sending);
  ++received;
}

/// Until the registration under way has landed, without a turn of the executor in between.
void until_kept(const mr::cache& cache) {
  while (cache.statistics().regions == 0) std::this_thread::yield();
}

// What a worker has brought is not here before the executor's next turn.
TEST_F_CACHE(cache_test, a_lease_on_its_way_to_a_task_that_is_destroyed_ends) {
  std::latch go_on(1);
  domain->while_registering = [&] { go_on.wait(); };
  int received = 0;
  const sim::loose_task first = lease_loosely(cache, part(0, 100), received);
  std::optional<sim::loose_task> second(lease_loosely(cache, part(0, 100), received));
  const sim::loose_task third = lease_loosely(cache, part(0, 100), received);
  first.start(*executor::current());
  second->start(*executor::current());
  third.start(*executor::current());
  co_await yield();
  EXPECT_EQ(cache.statistics().shared, 2u);
  go_on.count_down();
  until_kept(cache);
  second.reset();
  EXPECT_EQ(received, 0);
  while (received < 2) co_await yield();
  cache.clear();
  EXPECT_EQ(cache.statistics().regions, 0u);
}

TEST_F_CACHE(cache_test, a_failure_on_its_way_to_a_task_that_is_destroyed_is_forgotten) {
  const auto users = domain.use_count();
  std::latch go_on(1);
  domain->while_registering = [&] { go_on.wait(); };
  domain->refuse = true;
  int received = 0;
  {
    const sim::loose_task waiter = lease_loosely(cache, part(0, 100), received);
    waiter.start(*executor::current());
    co_await yield();
    go_on.count_down();
    while (domain.use_count() != users) std::this_thread::yield();  // the registration is undone
  }
  co_await yield();
  EXPECT_EQ(received, 0);
}

TASK_TEST_F(cache_test, leases_may_outlive_it) {
  in_all = 2;
  std::optional<mr::cache> cache(std::in_place, *domain);
  const lease held = co_await cache->lease(part(0, 10), sending);
  co_await touch(*cache, part(10, 10));
  cache.reset();
  EXPECT_EQ(held.bytes().size(), 10u);
}

TEST_F_CACHE(cache_test, cleared_forgets_what_is_not_in_use) {
  const lease held = co_await cache.lease(part(0, 10), sending);
  co_await touch(cache, part(10, 10));
  cache.clear();
  EXPECT_EQ(cache.statistics().regions, 1u);
  EXPECT_TRUE(held.current());
}

TEST_F_CACHE(cache_test, metrics_tell_of_hits_and_misses) {
  for (int i = 0; i < 3; ++i) co_await touch(cache, part(0, 10));
  metrics all;
  add_to(all, cache.statistics(), "mine");
  const std::string text = all.text();
  EXPECT_NE(text.find("weft_cache_hits_total{cache=\"mine\"} 2"), std::string::npos) << text;
  EXPECT_NE(text.find("weft_cache_misses_total{cache=\"mine\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("weft_cache_bytes{cache=\"mine\"} 10"), std::string::npos) << text;
}

TEST_F_CACHE(cache_test, a_child_process_is_refused_and_the_parent_goes_on) {
  const std::uint64_t before = co_await touch(cache, part(0, 10));
  const auto lease_again = [&] { static_cast<void>(cache.lease(part(0, 10), sending).await_ready()); };
  const pid_t child = test::fork_for([&] { return test::code_thrown_by(lease_again) != errc::not_supported; });
  EXPECT_EQ(test::end_of(child), 0);
  EXPECT_EQ(co_await touch(cache, part(0, 10)), before);
}

TEST(cache_options, come_from_the_environment) {
  ::setenv("WEFT_CACHE_MAX_SIZE", "12345", 1);
  ::setenv("WEFT_CACHE_MAX_COUNT", "0", 1);
  ::setenv("WEFT_CACHE_MONITOR", "userfaultfd", 1);
  const cache_options options = cache_options::from_environment();
  EXPECT_EQ(options.max_bytes, 12345u);
  EXPECT_EQ(options.max_regions, 0u);
  EXPECT_EQ(options.monitor, cache_monitor::userfaultfd);
  ::setenv("WEFT_CACHE_MONITOR", "memhooks", 1);
  EXPECT_EQ(test::code_thrown_by([] { static_cast<void>(cache_options::from_environment()); }), errc::invalid_argument);
  ::setenv("WEFT_CACHE_MONITOR", "disabled", 1);
  ::setenv("WEFT_CACHE_MAX_SIZE", "1G", 1);
  const std::string words = test::words_thrown_by([] { static_cast<void>(cache_options::from_environment()); });
  EXPECT_NE(words.find("WEFT_CACHE_MAX_SIZE=1G"), std::string::npos) << words;
  ::unsetenv("WEFT_CACHE_MAX_SIZE");
  ::unsetenv("WEFT_CACHE_MAX_COUNT");
  ::unsetenv("WEFT_CACHE_MONITOR");
  EXPECT_EQ(cache_options::from_environment().max_regions, 1024u);
}

TEST(cache_options, disabled_in_the_environment_keep_nothing) {
  ::setenv("WEFT_CACHE_MONITOR", "disabled", 1);
  const cache_options options = cache_options::from_environment();
  ::unsetenv("WEFT_CACHE_MONITOR");
  const auto domain = std::make_shared<recording_domain>();
  std::vector<std::byte> memory(100);
  test::run([&]() -> task<> {
    mr::cache cache(*domain, options);
    for (int i = 0; i < 2; ++i) {
      const lease held = co_await cache.lease(memory, sending);
      EXPECT_TRUE(held.current());
    }
    EXPECT_EQ(cache.statistics().regions, 0u);
  });
  EXPECT_EQ(domain->registered, 2);
}

// ---- a cache that the kernel tells of changes ----

class monitored_cache : public cache_test {
 protected:
  static constexpr std::size_t page = 4096;

  void SetUp() override {
    try {
      mr::cache(*domain, {.monitor = cache_monitor::userfaultfd});
    } catch (const error& why) {
      GTEST_SKIP() << why.what();
    }
    pages = map(nullptr, 8, 0);
  }
  void TearDown() override {
    if (!pages.empty()) ::munmap(pages.data(), pages.size());
    cache_test::TearDown();
  }

  static std::span<std::byte> map(void* where, std::size_t count, int flags) {
    void* const got = ::mmap(where, count * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    EXPECT_NE(got, MAP_FAILED);
    return {static_cast<std::byte*>(got), count * page};
  }

  template <class Script>
  void with_cache(Script script, const cache_options& options = {.monitor = cache_monitor::userfaultfd}) {
    cache_test::with_cache(script, options);
  }

  /// `change` is told to the cache before it returns, and leases of its first page are for what is there then.
  template <class Change>
  void expect_noticed(Change&& change) {
    with_cache([&](mr::cache& cache) -> task<> {
      const lease before = co_await cache.lease(pages.first(2 * page), sending);
      const std::uint64_t bystander = co_await touch(cache, pages.last(page));
      EXPECT_EQ(co_await touch(cache, pages.first(page)), before.generation());
      change();
      EXPECT_FALSE(before.current());
      EXPECT_EQ(cache.statistics().regions, 1u);
      EXPECT_EQ(co_await touch(cache, pages.last(page)), bystander);
    });
    expect_all_deregistered(*domain);
  }

  std::span<std::byte> pages;
};

TEST_F(monitored_cache, notices_memory_that_is_unmapped) {
  expect_noticed([&] { ::munmap(pages.data() + page, page); });
}

TEST_F_CACHE(monitored_cache, notices_memory_that_is_mapped_anew_at_the_same_address) {
  const std::uint64_t first = co_await touch(cache, pages.first(page));
  ::munmap(pages.data(), page);
  EXPECT_EQ(map(pages.data(), 1, MAP_FIXED_NOREPLACE).data(), pages.data());
  const std::uint64_t second = co_await touch(cache, pages.first(page));
  EXPECT_NE(second, first);
  EXPECT_EQ(co_await touch(cache, pages.first(page)), second);
  map(pages.data(), 1, MAP_FIXED);  // in one call
  EXPECT_NE(co_await touch(cache, pages.first(page)), second);
}

TEST_F(monitored_cache, notices_memory_that_is_moved) {
  void* moved = nullptr;
  expect_noticed([&] {
    const std::span<std::byte> target = map(nullptr, 2, 0);
    moved = ::mremap(pages.data(), 2 * page, 2 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target.data());
    EXPECT_EQ(moved, target.data());
  });
  ::munmap(moved, 2 * page);
}

TEST_F(monitored_cache, notices_pages_that_are_given_back) {
  expect_noticed([&] { EXPECT_EQ(::madvise(pages.data(), page, MADV_DONTNEED), 0); });
}

TEST_F_CACHE(monitored_cache, leaves_faults_alone) {
  const std::uint64_t first = co_await touch(cache, pages);
  pages.front() = std::byte{1};  // its first touch
  EXPECT_EQ(co_await touch(cache, pages), first);
}

TEST_F_CACHE(monitored_cache, notices_a_change_while_it_registers) {
  std::atomic<int> attempts{0};
  domain->while_registering = [&] {
    if (++attempts == 1) map(pages.data(), 1, MAP_FIXED);
  };
  const lease held = co_await cache.lease(pages.first(page), sending);
  EXPECT_EQ(attempts, 2);
  EXPECT_TRUE(held.current());
}

TEST_F_CACHE(monitored_cache, is_not_put_off_by_a_child_that_unmaps_its_copy) {
  const std::uint64_t before = co_await touch(cache, pages.first(page));
  EXPECT_EQ(test::end_of(test::fork_for([&] { return ::munmap(pages.data(), page); })), 0);
  EXPECT_EQ(co_await touch(cache, pages.first(page)), before);
  ::munmap(pages.data(), page);
  EXPECT_EQ(cache.statistics().regions, 0u);
}

// A child that has a copy of the monitor would be told of what the parent does, and keep it waiting.
TEST_F(monitored_cache, that_is_destroyed_leaves_its_memory_to_be_unmapped_while_a_child_lives) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  pid_t child = -1;
  with_cache([&](mr::cache& cache) -> task<> {
    co_await touch(cache, pages.first(page));
    child = test::fork_for([&] {
      char nothing = 0;
      ::close(ends[1]);
      return ::read(ends[0], &nothing, 1);
    });
    ::close(ends[0]);
  });
  ::munmap(pages.data(), page);
  ::close(ends[1]);
  EXPECT_EQ(test::end_of(child), 0);
}

TEST_F_CACHE(monitored_cache, does_not_keep_what_it_cannot_watch) {
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE, file, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  ::close(file);
  co_await touch(cache, std::span(static_cast<std::byte*>(mapped), page));
  EXPECT_EQ(cache.statistics().not_kept, 1u);
  EXPECT_EQ(cache.statistics().regions, 0u);
  ::munmap(mapped, page);
}

// A hole that is punched, or an end that is cut off, replaces pages, and the kernel tells nobody of it.
TEST_F(monitored_cache, does_not_keep_memory_whose_pages_others_can_replace) {
  const int file = ::memfd_create("shared", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, 8 * page), 0);
  const auto expect_not_kept = [&](int flags, int fd) {
    with_cache([&](mr::cache& cache) -> task<> {
      void* const second = pages.data() + page;  // between what is private
      EXPECT_EQ(::mmap(second, page, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0), second);
      const lease all = co_await cache.lease(pages.first(3 * page), sending);
      EXPECT_FALSE(all.current()) << "flags " << flags;
      EXPECT_EQ(cache.statistics().regions, 0u) << "flags " << flags;
      const lease ours = co_await cache.lease(pages.first(page), sending);
      EXPECT_TRUE(ours.current());
      EXPECT_EQ(cache.statistics().regions, 1u);
    });
  };
  expect_not_kept(MAP_SHARED, file);
  expect_not_kept(MAP_PRIVATE, file);
  expect_not_kept(MAP_SHARED | MAP_ANONYMOUS, -1);
  ::close(file);
}

TEST_F_CACHE(monitored_cache, has_nobody_join_a_registration_of_what_it_cannot_watch) {
  EXPECT_EQ(::mmap(pages.data(), page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            pages.data());
  test::held_first first;
  domain->while_registering = [&] { first.pass(); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    children.spawn(touch(cache, pages.first(page)));
    co_await yield();
    first.wait();
    children.spawn(touch(cache, pages.first(page)));
    co_await yield();
    EXPECT_EQ(cache.statistics().misses, 2u);
    first.let_go();
  });
}

TASK_TEST_F(monitored_cache, vouches_for_no_lease_once_it_is_gone) {
  std::optional<mr::cache> cache(std::in_place, *domain, cache_options{.monitor = cache_monitor::userfaultfd});
  const lease held = co_await cache->lease(pages, sending);
  EXPECT_TRUE(held.current());
  cache.reset();
  EXPECT_FALSE(held.current());
}

TEST_F(monitored_cache, stays_alive_while_other_threads_map_and_unmap_what_is_leased) {
  const std::jthread other([&](const std::stop_token& enough) {
    while (!enough.stop_requested()) {
      map(pages.data(), 4, MAP_FIXED);
      ::madvise(pages.data() + 4 * page, 2 * page, MADV_DONTNEED);
      std::free(std::malloc(200'000));
    }
  });
  test::run([&]() -> task<> {
    mr::cache cache(*domain, {.max_regions = 4, .monitor = cache_monitor::userfaultfd});
    std::mt19937 random(1);
    for (int i = 0; i < 2000; ++i) co_await touch(cache, pages.subspan(random() % 6 * page, page));
  });
}

std::set<pid_t> threads_of_this_process() {
  std::set<pid_t> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    all.insert(std::stoi(entry.path().filename()));
  }
  return all;
}

/// Keeps threads in a signal handler until it is destroyed.
class held_threads : private test::immovable {
 public:
  explicit held_threads(const std::set<pid_t>& which) : count_(which.size()) {
    EXPECT_EQ(::pipe(arrived.data()), 0);
    EXPECT_EQ(::pipe(let_go.data()), 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int saved = errno;
      char byte = 0;
      static_cast<void>(::write(arrived[1], &byte, 1) + ::read(let_go[0], &byte, 1) + ::write(arrived[1], &byte, 1));
      errno = saved;
    };
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
    for (const pid_t each : which) EXPECT_EQ(::syscall(SYS_tgkill, ::getpid(), each, SIGUSR1), 0);
    hear_of_all();
  }
  ~held_threads() {
    const std::vector<char> bytes(count_);
    EXPECT_EQ(::write(let_go[1], bytes.data(), count_), static_cast<ssize_t>(count_));
    hear_of_all();  // before anything else gets the numbers of the pipes
    ::sigaction(SIGUSR1, &before_, nullptr);
    for (const int fd : {arrived[0], arrived[1], let_go[0], let_go[1]}) ::close(fd);
  }

 private:
  void hear_of_all() const {
    char byte = 0;
    for (std::size_t i = 0; i < count_; ++i) EXPECT_EQ(::read(arrived[0], &byte, 1), 1);
  }

  static inline std::array<int, 2> arrived{};
  static inline std::array<int, 2> let_go{};

  std::size_t count_;
  struct sigaction before_ {};
};

// munmap(2) frees the addresses before the monitor hears of it, and mmap(2) on another thread may be given them at
// once.
TASK_TEST_F(monitored_cache, leases_nothing_of_memory_whose_end_the_monitor_has_not_read_yet) {
#ifdef WEFT_TEST_TSAN
  [] { GTEST_SKIP() << "the sanitizer keeps the signal from a thread while that waits for a semaphore"; }();
  co_return;
#endif
  const std::set<pid_t> others = threads_of_this_process();
  mr::cache cache(*domain, {.monitor = cache_monitor::userfaultfd});
  std::set<pid_t> monitor = threads_of_this_process();
  std::erase_if(monitor, [&](pid_t each) { return others.contains(each); });
  const lease before = co_await cache.lease(pages.first(page), sending);
  std::thread unmapping;
  {
    const held_threads held(monitor);
    unmapping = std::thread([&] { ::munmap(pages.data(), page); });  // returns once the monitor has read of it
    constexpr int at_once = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    while (::mmap(pages.data(), page, PROT_READ | PROT_WRITE, at_once, -1, 0) == MAP_FAILED) std::this_thread::yield();
    EXPECT_FALSE(before.current());
    const lease anew = co_await cache.lease(pages.first(page), sending);
    EXPECT_NE(anew.generation(), before.generation());
  }
  unmapping.join();
  EXPECT_FALSE(before.current());
}

// To the kernel a watched range is a mapping of its own, of which a process may have so many: vm.max_map_count.
TASK_TEST_F(monitored_cache, ends_the_watch_of_what_it_keeps_no_longer) {
  mr::cache cache(*domain, {.max_regions = 2, .monitor = cache_monitor::userfaultfd});
  pages.front() = std::byte{1};  // before the parts: the kernel never joins parts that got their first pages apart
  for (std::size_t i = 0; i < 8; i += 2) {
    const lease held = co_await cache.lease(pages.subspan(i * page, page), sending | usage::recv);
    pages[i * page] = std::byte{1};
  }
  const auto mappings = [&] { return detail::mapped_ranges_of(pages)->size(); };
  EXPECT_GE(mappings(), 4u);
  cache.clear();
  while (mappings() != 1) co_await yield();
}

TEST_F_CACHE(monitored_cache, goes_on_watching_what_another_region_needs) {
  co_await touch(cache, pages.first(3 * page), sending);
  const lease other = co_await cache.lease(pages.subspan(page, page), usage::send);
  cache.invalidate(pages.subspan(2 * page, page));  // the first one goes, and leaves the other's page watched
  while (detail::mapped_ranges_of(pages)->size() != 3) co_await yield();
  EXPECT_TRUE(other.current());
  ::munmap(pages.data() + page, page);
  EXPECT_FALSE(other.current());
}

// Up to Linux 6.16 one descriptor of userfaultfd(2) ends the watch of another.
TASK_TEST_F(monitored_cache, ends_no_watch_of_a_cache_that_has_come_after_it) {
  mr::cache first(*domain, {.monitor = cache_monitor::userfaultfd});
  std::optional<lease> gone(co_await first.lease(pages.first(page), sending));
  map(pages.data(), 1, MAP_FIXED);
  mr::cache second(*domain, {.monitor = cache_monitor::userfaultfd});
  const lease held = co_await second.lease(pages.first(page), sending);
  EXPECT_TRUE(held.current());
  gone.reset();
  while (first.statistics().registered_bytes != 0) co_await yield();
  map(pages.data(), 1, MAP_FIXED);
  EXPECT_FALSE(held.current());
}

// ---- against a model ----

/// The same, as simple as can be said: ranges in the order in which they give way.
struct model {
  struct item {
    std::size_t from, to;
    usage purpose;
    std::uint64_t generation;
    int leases = 0;
    bool leased_again = false;
  };
  struct limits {
    std::size_t bytes, regions;
  };

  explicit model(limits most) : most_(most) {}

  /// Of several that would do, the one that begins last.
  item* find(std::size_t from, std::size_t to, usage purpose) {
    auto best = kept.end();
    for (auto at = kept.begin(); at != kept.end(); ++at) {
      if (at->purpose != purpose || at->from > from || at->to < to) continue;
      if (best == kept.end() || at->from > best->from) best = at;
    }
    if (best == kept.end()) return nullptr;
    best->leased_again = true;
    return &*best;
  }

  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = 0;
    for (const item& each : kept) sum += each.to - each.from;
    return sum;
  }

  /// False if there is no room.
  bool add(const item& made) {
    if (made.to - made.from > most_.bytes || most_.regions == 0) return false;
    std::erase_if(kept, [&](const item& each) {
      return each.purpose == made.purpose && each.from >= made.from && each.to <= made.to;
    });
    std::size_t passed_over = 0;
    while (kept.size() + 1 > most_.regions || bytes() + made.to - made.from > most_.bytes) {
      if (kept.empty()) return false;
      item& first = kept.front();
      if ((first.leases != 0 || first.leased_again) && passed_over++ < 2 * kept.size()) {
        first.leased_again = false;
        std::rotate(kept.begin(), kept.begin() + 1, kept.end());
        continue;
      }
      if (first.leases != 0) return false;
      kept.erase(kept.begin());
    }
    kept.push_back(made);
    return true;
  }

  void release(std::uint64_t generation) {
    for (item& each : kept) {
      if (each.generation == generation) --each.leases;
    }
  }
  void invalidate(std::size_t from, std::size_t to) {
    std::erase_if(kept, [&](const item& each) { return each.from < to && from < each.to; });
    for (auto& [generation, each] : registrations) each.stale = each.stale || (each.from < to && from < each.to);
  }

  std::vector<item> kept;
  struct registration {
    std::size_t from, to;
    bool stale = false;
  };
  std::map<std::uint64_t, registration> registrations;  // by their generations, whether they are kept or not

 private:
  limits most_;
};

class cache_program {
 public:
  explicit cache_program(unsigned seed) : draw_(seed) {}

  task<> run(const std::shared_ptr<recording_domain>& domain, std::span<std::byte> memory) {
    const model::limits most{.bytes = draw_(1, 3) * 100, .regions = draw_(0, 4)};
    model expected(most);
    mr::cache cache(*domain, {.max_bytes = most.bytes, .max_regions = most.regions});
    std::vector<lease> held;
    std::uint64_t generation = 0;
    std::uint64_t hits = 0;
    for (int step = 0; step < 12; ++step) {
      const std::size_t from = draw_(0, 150);
      const std::size_t to = from + draw_(1, 100);
      switch (draw_(0, 6)) {
        case 0:
          if (held.empty()) break;
          {
            const auto item = held.begin() + static_cast<std::ptrdiff_t>(draw_(0, held.size() - 1));
            expected.release(item->generation());
            held.erase(item);
          }
          break;
        case 1:
          cache.invalidate(memory.subspan(from, to - from));
          expected.invalidate(from, to);
          break;
        default: {
          const usage purpose = draw_(0, 3) == 0 ? usage::recv : usage::send;
          lease got = co_await cache.lease(memory.subspan(from, to - from), purpose);
          const bool keep = draw_(0, 1) == 0;
          if (model::item* const known = expected.find(from, to, purpose)) {
            ++hits;
            EXPECT_EQ(got.generation(), known->generation);
            if (keep) ++known->leases;
          } else {
            EXPECT_EQ(got.generation(), ++generation);
            expected.registrations[generation] = {from, to};
            // While it is being kept it is leased by us.
            if (expected.add({from, to, purpose, generation, 1}) && !keep) --expected.kept.back().leases;
          }
          if (keep) held.push_back(std::move(got));
        }
      }
      for (const lease& each : held) EXPECT_EQ(each.current(), !expected.registrations[each.generation()].stale);
      const cache_statistics now = cache.statistics();
      EXPECT_EQ(now.regions, expected.kept.size());
      EXPECT_EQ(now.bytes, expected.bytes());
      EXPECT_EQ(now.hits, hits);
      EXPECT_EQ(now.misses, generation);
      if (::testing::Test::HasFailure()) co_return;
    }
  }

 private:
  test::dice draw_;
};

constexpr unsigned cache_programs = test::is_slow ? 1000 : 20000;

TEST(cache_model, any_program_finds_what_a_simple_list_would_have_kept) {
  const auto domain = std::make_shared<recording_domain>();
  std::vector<std::byte> memory(300);
  executor home;
  for (unsigned seed = 1; seed <= cache_programs; ++seed) {
    cache_program program(seed);
    home.run(program.run(domain, memory));
    expect_all_deregistered(*domain);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

class cache_threads : public cache_test {};

TEST_F(cache_threads, share_one_cache_and_lose_nothing) {
  mr::cache cache(*domain, {.max_regions = 8});
  const auto work = [&](unsigned seed) {
    test::run([&]() -> task<> {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        const std::size_t from = random() % 16 * 200;
        const lease held = co_await cache.lease(part(from, 200), sending);
        if (random() % 8 == 0) cache.invalidate(part(from, 1));
        if (random() % 4 == 0) co_await yield();
      }
    });
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& each : threads) each.join();
  EXPECT_LE(cache.statistics().regions, 8u);
}

TEST_F(cache_threads, tasks_may_be_destroyed_while_a_worker_serves_them) {
  mr::cache cache(*domain, {.max_regions = 0});
  for (int round = 0; round < 1000; ++round) {
    test::run([&]() -> task<> {
      int received = 0;
      const sim::loose_task one = lease_loosely(cache, part(0, 100), received);
      const sim::loose_task other = lease_loosely(cache, part(0, 100), received);
      one.start(*executor::current());
      other.start(*executor::current());
      for (int turns = round % 20; turns >= 0; --turns) co_await yield();
      while (!one.at_rest() || !other.at_rest()) co_await yield();
    });  // and the executor goes at once
  }
}

}  // namespace
}  // namespace weft::mr

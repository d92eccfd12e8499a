// SPDX-License-Identifier: Apache-2.0
// Random programs, played again and again while each allocation, mapping and registration fails in its turn: whatever
// fails, the program learns of it by an exception or not at all, nobody's memory is touched, and nothing is left
// behind.
#include <weft/mr/cache.hpp>
#include <weft/mr/porting/porting.hpp>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::dice;
using test::kib;

constexpr unsigned failing_programs = test::is_slow ? 3 : 30;

/// What the pools and the domains of one run have.
struct surroundings {
  test::counting_memory kernel;
  std::shared_ptr<test::recording_domain> domain = std::make_shared<test::recording_domain>();
};

/// Plays `script(seed, surroundings)`, a coroutine, on a thread and an executor of its own, so that nothing is at hand
/// that an earlier run has allocated. Returns whether a call has failed.
template <class Script>
bool play(unsigned seed, std::int64_t failing, Script& script) {
  bool failed = false;
  surroundings around;
  std::thread thread([&] {
    executor home;
    home.run([&]() -> task<> {
      auto play_it = script(seed, around);
      test::fail_call(failing);
      co_await std::move(play_it);
    }());
    failed = test::call_has_failed();
    test::fail_call(0);
  });
  thread.join();
  test::expect_all_deregistered(*around.domain);
  EXPECT_EQ(around.kernel.mapped, 0u) << "seed " << seed << ", call " << failing;
  return failed;
}

template <class Script>
void fail_each_call(Script script) {
  std::int64_t runs = 0;
  for (unsigned seed = 1; seed <= failing_programs; ++seed) {
    for (std::int64_t failing = 1; play(seed, failing, script); ++failing, ++runs) {
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", call " << failing;
    }
  }
  EXPECT_GT(runs, failing_programs);
}

// Never more than a quarter of a share is in use, so that waiting comes to an end.
task<> use_a_pool(unsigned seed, surroundings& around) {
  constexpr std::size_t most = 16;
  struct item {
    buffer memory;
    std::byte pattern{};
  };
  dice draw(seed);
  std::array<std::optional<item>, most> live;
  std::optional<shared_buffer> shared;
  try {
    pool source(around.domain,
                {.max_bytes = 512 * kib, .arena_bytes = 64 * kib, .huge_pages = false, .system_calls = &around.kernel});
    for (int step = 0; step < 30; ++step) {
      std::optional<item>& place = live[draw(0, most - 1)];
      try {
        if (place) {
          EXPECT_EQ(std::ranges::count(place->memory.bytes(), place->pattern),
                    static_cast<std::ptrdiff_t>(place->memory.size()));
          if (draw(0, 3) == 0) shared.emplace(std::move(place->memory));
          place.reset();
          continue;
        }
        const std::size_t bytes = draw(1, 4 * kib);
        const budget share = draw(0, 1) == 0 ? budget::send : budget::receive;
        std::optional<buffer> got;
        if (draw(0, 2) == 0) {
          got = source.try_allocate(bytes, share);
        } else {
          got = co_await source.allocate(bytes, share);
        }
        if (!got) continue;
        EXPECT_EQ(got->size(), bytes);
        const auto pattern = static_cast<std::byte>(draw(0, 255));
        std::ranges::fill(got->bytes(), pattern);
        place.emplace(item{std::move(*got), pattern});
      } catch (const std::exception&) {
      }
    }
    if (draw(0, 1) == 0) co_return;  // the pool goes before what is of it
    for (auto& each : live) each.reset();
    shared.reset();
    EXPECT_EQ(source.statistics().send.in_use_bytes, 0u);
    EXPECT_EQ(source.statistics().receive.in_use_bytes, 0u);
  } catch (const std::exception&) {
  }
}

TEST(faults, of_a_pool_leave_everybody_his_memory_and_nothing_behind) { fail_each_call(use_a_pool); }

task<> use_a_cache(unsigned seed, surroundings& around) {
  static std::array<std::byte, 400> memory;
  dice draw(seed);
  std::array<std::optional<lease>, 4> held;
  try {
    cache source(*around.domain, {.max_bytes = draw(1, 3) * 100, .max_regions = draw(0, 4)});
    for (int step = 0; step < 30; ++step) {
      try {
        const std::size_t from = draw(0, 300);
        const auto range = std::span(memory).subspan(from, draw(1, 100));
        std::optional<lease>& place = held[draw(0, held.size() - 1)];
        switch (draw(0, 7)) {
          case 0:
            source.invalidate(range);
            break;
          case 1:
            source.clear();
            break;
          case 2:
            place.reset();
            break;
          default: {
            lease got = co_await source.lease(range, draw(0, 1) == 0 ? usage::send : usage::recv);
            EXPECT_EQ(got.bytes().data(), range.data());
            EXPECT_TRUE(got.current());
            place.emplace(std::move(got));
          }
        }
      } catch (const std::exception&) {
      }
    }
    for (auto& each : held) each.reset();
    source.clear();
    EXPECT_EQ(source.statistics().regions, 0u);
  } catch (const std::exception&) {
  }
}

TEST(faults, of_a_cache_end_leases_with_an_error_and_leave_nothing_registered) { fail_each_call(use_a_cache); }

task<> use_regions(unsigned seed, surroundings& around) {
  static std::array<std::byte, 400> memory;
  dice draw(seed);
  try {
    porting::event_queue events;
    std::size_t submitted = 0;
    std::vector<porting::pending_region> pending;
    pending.reserve(10);
    for (int step = 0; step < 10; ++step) {
      const auto range = std::span(memory).subspan(draw(0, 300), draw(1, 100));
      try {
        if (draw(0, 1) == 0) {
          region made = co_await around.domain->register_memory(range, {.usage = usage::send});
          co_await made.release();
        } else {
          pending.push_back(porting::submit(*around.domain, range, {.usage = usage::send}, events, &pending));
          ++submitted;
          if (draw(0, 2) == 0) pending.pop_back();
        }
      } catch (const std::exception&) {
      }
    }
    // Each submission that did not throw has one event, whatever fails.
    while (submitted > 0) {
      try {
        const porting::registration_event end = co_await events.next();
        EXPECT_EQ(end.context, &pending);
        --submitted;
      } catch (const std::exception&) {
      }
    }
    EXPECT_EQ(events.size(), 0u);
  } catch (const std::exception&) {
  }
}

TEST(faults, of_regions_and_submissions_lose_no_event_and_leave_nothing_registered) { fail_each_call(use_regions); }

}  // namespace
}  // namespace weft::mr

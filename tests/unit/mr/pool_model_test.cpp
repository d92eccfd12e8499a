// SPDX-License-Identifier: Apache-2.0
// Random programs against the simplest model of a pool: every buffer is as large as asked for, overlaps no other one,
// keeps what was written into it, and in the end nothing is left; also where mappings and registrations fail.
#include <weft/mr/shared_buffer.hpp>

#include <map>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::kib;

class pool_program {
 public:
  pool_program(unsigned seed, test::counting_memory& kernel, test::recording_domain& domain)
      : draw_(seed), kernel_(kernel), domain_(domain) {}

  task<> run(pool& source) {
    for (int step = 0; step < 40 && !::testing::Test::HasFailure(); ++step) {
      switch (draw_(0, 9)) {
        case 0:
          kernel_.failure = draw_(0, 1) == 0 ? ENOMEM : 0;
          domain_.refuse = draw_(0, 3) == 0;
          break;
        case 1:
          co_await yield();  // a worker may be done
          break;
        case 2:
          share_one();
          break;
        case 3:
        case 4:
        case 5:
          free_one();
          break;
        default:
          take_one(source);
      }
      check(source);
    }
    while (!live_.empty()) free_one();
  }

 private:
  struct item {
    std::optional<buffer> alone;
    std::vector<shared_buffer> copies;
    budget share;
    unsigned char pattern;
  };

  void take_one(pool& source) {
    const budget share = draw_(0, 1) == 0 ? budget::send : budget::receive;
    const std::size_t bytes = draw_(0, 3) == 0 ? draw_(1, 40 * kib) : draw_(1, 2 * kib);
    std::optional<buffer> got = source.try_allocate(bytes, share);
    if (!got) return;
    EXPECT_EQ(got->size(), bytes);
    const auto pattern = static_cast<unsigned char>(draw_(0, 255));
    std::memset(got->data(), pattern, got->size());
    std::byte* const where = got->data();
    const bool fresh = live_.try_emplace(where, item{std::move(got), {}, share, pattern}).second;
    EXPECT_TRUE(fresh) << "handed out twice";
  }

  void share_one() {
    if (live_.empty()) return;
    item& picked = pick()->second;
    if (picked.alone) {
      picked.copies.emplace_back(std::move(*picked.alone));
      picked.alone.reset();
    } else {
      const shared_buffer again = picked.copies.front();
      picked.copies.push_back(again);
    }
  }

  void free_one() {
    if (live_.empty()) return;
    const auto picked = pick();
    if (!picked->second.copies.empty()) picked->second.copies.pop_back();
    if (picked->second.copies.empty()) live_.erase(picked);
  }

  void check(const pool& source) {
    const std::byte* end = nullptr;
    std::size_t used[2] = {0, 0};
    for (const auto& [where, each] : live_) {
      const std::span<const std::byte> bytes = each.alone ? each.alone->bytes() : each.copies.front().bytes();
      EXPECT_EQ(bytes.data(), where);
      EXPECT_GE(where, end) << "two buffers overlap";
      end = where + bytes.size();
      EXPECT_TRUE(holds_only(bytes, each.pattern));
      used[static_cast<std::size_t>(each.share)] += bytes.size();
    }
    const pool_statistics now = source.statistics();
    for (const budget share : {budget::send, budget::receive}) {
      EXPECT_GE(now.of(share).in_use_bytes, used[static_cast<std::size_t>(share)]);
      EXPECT_LE(now.of(share).arena_bytes, now.of(share).max_bytes);
    }
  }

  /// By memcmp(3), because this is most of what the test does: each byte is like the next, and the first is right.
  static bool holds_only(std::span<const std::byte> bytes, unsigned char pattern) {
    return bytes.front() == std::byte{pattern} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
  }
  std::map<std::byte*, item>::iterator pick() {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(draw_(0, live_.size() - 1)));
  }

  test::dice draw_;
  test::counting_memory& kernel_;
  test::recording_domain& domain_;
  std::map<std::byte*, item> live_;
};

constexpr unsigned pool_programs = test::is_slow ? 1000 : 20000;

TEST(pool_model, any_program_gets_memory_of_its_own_and_leaves_none_behind) {
  test::counting_memory kernel;
  const auto domain = std::make_shared<test::recording_domain>();
  executor home;
  for (unsigned seed = 1; seed <= pool_programs; ++seed) {
    home.run([&]() -> task<> {
      kernel.failure = 0;
      domain->refuse = false;
      pool source(domain,
                  {.max_bytes = 256 * kib, .arena_bytes = 64 * kib, .huge_pages = false, .system_calls = &kernel});
      {
        const buffer first = co_await source.allocate(1, budget::send);  // makes the first arena
      }
      pool_program program(seed, kernel, *domain);
      co_await program.run(source);
      EXPECT_EQ(source.statistics().send.in_use_bytes, 0u);
      EXPECT_EQ(source.statistics().receive.in_use_bytes, 0u);
    }());
    ASSERT_EQ(kernel.mapped, 0u) << "seed " << seed;
    ASSERT_EQ(domain->registered, domain->deregistered) << "seed " << seed;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(pool_model, two_hundred_arenas_are_all_used_for_one_size_and_then_for_others_and_go_when_they_are_idle) {
  constexpr std::size_t arenas = 200;
  std::mt19937 random(7);
  test::counting_memory kernel;
  const auto domain = std::make_shared<test::recording_domain>();
  const auto body = [&]() -> task<> {
    pool source(domain, {.max_bytes = arenas * 64 * kib,
                         .arena_bytes = 64 * kib,
                         .receive_fraction = 0,
                         .huge_pages = false,
                         .system_calls = &kernel});
    std::vector<buffer> live;
    const auto free_some = [&](std::size_t left) {
      std::shuffle(live.begin(), live.end(), random);
      while (live.size() > left) live.pop_back();
    };
    const auto expect_apart = [&] {
      std::map<const std::byte*, std::size_t> all;
      for (const buffer& each : live) EXPECT_TRUE(all.emplace(each.data(), each.size()).second);
      const std::byte* end = nullptr;
      for (const auto& [where, bytes] : all) {
        EXPECT_GE(where, end) << "two buffers overlap";
        end = where + bytes;
      }
    };
    const auto take = [&](std::size_t count, std::size_t bytes) -> task<> {
      for (; count != 0; --count) live.push_back(co_await source.allocate(bytes, budget::send));
      expect_apart();
    };
    for (const std::size_t bytes : {16 * kib, kib, 64 * kib, 4 * kib}) {
      co_await take(arenas * 64 * kib / bytes, bytes);
      EXPECT_FALSE(source.try_allocate(bytes, budget::send)) << "all is taken";
      if (bytes == kib) {
        free_some(100);  // in about as many arenas, whose other chunks are cut anew
        co_await take(2 * arenas, 16 * kib);
      }
      free_some(0);
    }
  };
  executor home;
  home.run(body());
  EXPECT_EQ(kernel.mapped, 0u);
  EXPECT_EQ(domain->registered, domain->deregistered);
}

}  // namespace
}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
// What is lent to a peer, and let go by whoever has it while the link and its executor end.
#include <weft/net/connection/lending.hpp>
#include <weft/runtime/sleep.hpp>

#include <map>
#include <random>

#include "kit/clock.hpp"
#include "kit/idle_link.hpp"
#include "kit/task_test.hpp"
#include "kit/test.hpp"
#include "sanitized.hpp"

namespace weft::net {
namespace {

class counting_link final : public test::idle_link {
 public:
  int revoked = 0;

  void revoke(std::uint64_t key, revocation& who) noexcept override {
    ++revoked;
    idle_link::revoke(key, who);
  }
};

// Nearer to one another than a latch brings them.
class starting_line {
 public:
  void wait() noexcept {
    const unsigned round = arrived_.fetch_add(1) / 2;
    for (int spins = 0; arrived_.load() / 2 == round; ++spins) {
      if (spins > 100) std::this_thread::yield();
    }
  }

 private:
  std::atomic<unsigned> arrived_{0};
};

std::unique_ptr<lending> lend(const std::shared_ptr<link_keys>& keys, std::uint32_t key,
                              time_point until = time_point::max()) {
  auto item = std::make_unique<lending>(keys, until);
  EXPECT_TRUE(keys->opened(*item, key, 64));
  return item;
}

// Whoever finds the link there hands the key to its executor, which must not go meanwhile.
TEST(lending, that_another_thread_ends_finds_the_executor_there_or_needs_none) {
  constexpr int rounds = test::sanitized ? 2000 : 5000;
  constexpr int each = 4;
  live_statistics counters;
  counting_link below;
  starting_line line;
  std::vector<std::unique_ptr<lending>> lent;
  std::thread other([&] {
    for (int round = 0; round < rounds; ++round) {
      line.wait();
      std::vector<std::unique_ptr<lending>> mine = std::move(lent);
      line.wait();
      for (auto& item : mine) (round % 2 == 0 ? link_keys::end : link_keys::retire)(item.release());
      line.wait();
    }
  });
  for (int round = 0; round < rounds; ++round) {
    auto home = std::make_unique<executor>();
    std::shared_ptr<link_keys> keys;
    const auto open = [&]() -> task<> {
      keys = std::make_shared<link_keys>(counters);
      keys->attach(below);
      for (std::uint32_t key = 1; key <= each; ++key) lent.push_back(lend(keys, key));
      co_return;
    };
    home->run(open());
    line.wait();
    line.wait();
    for (int delay = round % 64; delay != 0; --delay) std::atomic_signal_fence(std::memory_order_seq_cst);
    keys->detach();
    home.reset();
    line.wait();
    EXPECT_EQ(keys.use_count(), 1) << "something that was lent has not been let go";
    EXPECT_EQ(counters.retired.get(), 0u);
  }
  other.join();
  EXPECT_LE(below.revoked, rounds * each);
}

// The number of a key may be another memory's on the next link.
TASK_TEST(lending, of_a_link_that_has_gone_is_no_concern_of_the_next_one) {
  live_statistics counters;
  counting_link first, second;
  const auto keys = std::make_shared<link_keys>(counters);
  keys->attach(first);
  auto ended = lend(keys, 7);
  auto retired = lend(keys, 7);
  auto late = std::make_unique<lending>(keys, time_point::max());  // its key comes when the link has gone
  keys->detach();
  keys->attach(second);
  auto anew = lend(keys, 7);
  EXPECT_TRUE(keys->opened(*late, 7, 64));
  link_keys::end(late.release());
  link_keys::end(ended.release());
  link_keys::retire(retired.release());
  EXPECT_EQ(counters.retired.get(), 0u) << "its key opens nothing any more";
  EXPECT_EQ(second.revoked, 0);
  link_keys::end(anew.release());
  EXPECT_EQ(second.revoked, 1);
  keys->detach();
  EXPECT_EQ(keys.use_count(), 1);
  EXPECT_EQ(first.revoked, 0);
  co_return;
}

// A retired one goes when the peer confirms it, in whatever order; one that was confirmed before goes when it retires.
TASK_TEST(lending, goes_once_it_is_both_retired_and_confirmed_in_any_order) {
  std::mt19937 random(4);
  live_statistics counters;
  counting_link below;
  const auto keys = std::make_shared<link_keys>(counters);
  keys->attach(below);
  struct state {
    std::unique_ptr<lending> lent;
    bool confirmed = false;
  };
  std::map<std::uint32_t, state> model;
  int gone = 0;
  std::size_t retired = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint32_t key = 1 + static_cast<std::uint32_t>(random()) % 1000;
    const auto known = model.find(key);
    if (known == model.end()) {
      model[key].lent = lend(keys, key);
    } else if (state& its = known->second; random() % 2 == 0) {
      keys->confirm(key);
      its.confirmed = true;
      if (its.lent != nullptr) continue;
      --retired;
      ++gone;
      model.erase(known);
    } else if (its.lent != nullptr) {
      const bool ends = random() % 2 == 0;
      const bool goes = ends || its.confirmed;
      (ends ? link_keys::end : link_keys::retire)(its.lent.release());
      gone += goes ? 1 : 0;
      retired += goes ? 0 : 1;
      if (goes) model.erase(known);
    }
    EXPECT_EQ(below.revoked, gone) << step;
    EXPECT_EQ(counters.retired.get(), retired) << step;
    if (::testing::Test::HasFailure()) break;
  }
  keys->detach();
  EXPECT_EQ(counters.retired.get(), 0u);
  for (auto& [key, its] : model) {
    if (its.lent != nullptr) link_keys::end(its.lent.release());
  }
  EXPECT_EQ(keys.use_count(), 1);
  co_return;
}

// By the executor's clock, and not before.
TEST(lending, ends_at_its_deadline_whoever_owns_it) {
  live_statistics counters;
  counting_link below;
  test::manual_clock time;
  executor home({.clock = &time});
  const auto script = [&]() -> task<> {
    const auto keys = std::make_shared<link_keys>(counters);
    keys->attach(below);
    const time_point until = time.now() + std::chrono::seconds(5);
    auto owned = lend(keys, 1, until);
    auto returned = lend(keys, 2, until);
    auto retired = lend(keys, 3, until);
    auto late = std::make_unique<lending>(keys, until);  // its key comes when its time has passed
    link_keys::end(returned.release());
    link_keys::retire(retired.release());
    EXPECT_EQ(below.revoked, 1);
    loan_watch watch(*owned);
    time.advance_to(until - std::chrono::nanoseconds(1));
    co_await yield();
    EXPECT_EQ(below.revoked, 1);
    EXPECT_FALSE(watch.is_over());
    time.advance_to(until);
    co_await watch.wait();
    EXPECT_EQ(watch.end(), exposure_end::deadline);
    EXPECT_EQ(owned->ended_by(), exposure_end::deadline);
    EXPECT_EQ(below.revoked, 3);
    EXPECT_EQ(counters.retired.get(), 0u);
    EXPECT_FALSE(keys->opened(*late, 4, 64));
    link_keys::end(late.release());
    EXPECT_EQ(below.revoked, 4);
    link_keys::end(owned.release());
    EXPECT_EQ(below.revoked, 4);
    keys->detach();
    EXPECT_EQ(keys.use_count(), 1);
  };
  home.run(script());
}

}  // namespace
}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/erased_keys.hpp>
#include <weft/net/software/key_list.hpp>
#include <weft/net/software/key_table.hpp>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "kit/test.hpp"

namespace weft::net::software {
namespace {

using node = key_list::node;

std::unique_ptr<node> node_of(std::uint32_t stag) {
  auto made = std::make_unique<node>();
  made->stag = stag;
  return made;
}

TEST(key_list, agrees_with_a_map_on_any_program_while_it_grows_and_empties) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    key_list list;
    std::map<std::uint32_t, std::unique_ptr<node>> model;
    // Few low bits, few high bits, or any.
    const auto draw = [&]() -> std::uint32_t {
      const auto any = static_cast<std::uint32_t>(random());
      return seed % 3 == 0 ? any % 4096 : seed % 3 == 1 ? any << 18 : any;
    };
    for (int step = 0; step < 20'000; ++step) {
      const std::uint32_t stag = draw();
      const auto known = model.find(stag);
      ASSERT_EQ(list.find(stag), known != model.end() ? known->second.get() : nullptr) << "seed " << seed;
      const bool removes = step < 15'000 ? random() % 4 == 0 : random() % 4 != 0;
      if (known == model.end() && !removes && stag != 0) {
        list.insert(*model.emplace(stag, node_of(stag)).first->second);
      } else if (!model.empty() && removes) {
        const auto next = model.lower_bound(stag);
        const auto gone = next != model.end() ? next : model.begin();
        ASSERT_EQ(list.remove(gone->first), gone->second.get()) << "seed " << seed;
        ASSERT_EQ(list.remove(gone->first), nullptr) << "seed " << seed;
        model.erase(gone);
      }
      ASSERT_EQ(list.size(), model.size());
    }
    std::set<node*> left;
    list.clear([&](node& item) { left.insert(&item); });
    ASSERT_EQ(left.size(), model.size());
    for (const auto& [stag, item] : model) ASSERT_TRUE(left.contains(item.get())) << stag;
  }
}

TEST(key_list, has_a_bucket_for_every_entry) {
  key_list list;
  std::deque<node> nodes;
  for (std::uint32_t stag = 1; stag <= 50'000; ++stag) {
    node& made = nodes.emplace_back();
    made.stag = stag;
    list.insert(made);
    ASSERT_GE(list.buckets(), list.size());
    ASSERT_LE(list.buckets(), std::max<std::size_t>(64, 2 * list.size()));
  }
}

TEST(key_list, no_key_is_that_of_a_bucket) {
  key_list list;
  EXPECT_EQ(list.find(0), nullptr);
  EXPECT_EQ(list.remove(0), nullptr);
}

TEST(key_list, readers_find_what_is_there_while_it_grows_around_them) {
  constexpr std::uint32_t kept = 100;
  key_list list;
  std::deque<node> nodes;
  const auto add = [&](std::uint32_t stag) {
    node& made = nodes.emplace_back();
    made.stag = stag;
    list.insert(made);
  };
  for (std::uint32_t stag = 1; stag <= kept; ++stag) add(stag);
  std::atomic<std::uint32_t> newest{kept};
  std::atomic<std::uint64_t> misses{0};
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<bool> stop{false};
  const auto look = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (!stop) {
      const std::uint32_t there = newest.load(std::memory_order_acquire);
      for (int i = 0; i < 100; ++i) {
        const std::uint32_t stag = 1 + static_cast<std::uint32_t>(random()) % there;
        if (stag <= kept || stag % 2 == 0) misses += list.find(stag) == nullptr;
        misses += list.find(~stag) != nullptr;
      }
      ++rounds;
    }
  };
  std::thread first(look, 1);
  std::thread second(look, 2);
  while (rounds < 2) std::this_thread::yield();
  // Those with odd numbers come and go; a removed one stays in memory, as the table's do until their readers have left.
  for (std::uint32_t stag = kept + 1; stag <= 100'000; ++stag) {
    add(stag);
    if (stag % 2 != 0) {
      EXPECT_NE(list.remove(stag), nullptr);
    }
    newest.store(stag, std::memory_order_release);
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(misses, 0U);
  EXPECT_GE(list.buckets(), 50'000U);
}

TEST(key_table_growth, no_access_misses_its_key_and_no_erased_one_hits_while_others_open_and_erase_keys) {
  key_table table;
  std::vector<std::byte> memory(8);
  const std::uint32_t stag = table.insert(memory, 0, {.remote_read = true});
  std::atomic<std::uint64_t> misses{0};
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    key_table::reader own(table);
    while (!stop) {
      const key_table::reader::batch inside(own);
      for (int i = 0; i < 10; ++i) misses += own.check_read(stag, 0, 8, 1) != access_status::ok;
      ++rounds;
    }
  });
  while (rounds == 0) std::this_thread::yield();
  key_table::reader own(table);
  std::vector<std::uint32_t> open;
  for (int i = 0; i < 20'000; ++i) {
    open.push_back(table.insert(memory, 0, {.remote_read = true}));
    if (i % 8 != 0) continue;
    const std::uint32_t gone = open[static_cast<std::size_t>(i) / 2];
    table.erase(gone);
    const key_table::reader::batch inside(own);
    EXPECT_EQ(own.check_read(gone, 0, 8, 1), access_status::invalid_stag);
  }
  stop = true;
  other.join();
  EXPECT_EQ(misses, 0U);
}

TEST(erased_keys, are_the_last_ones_of_any_program) {
  struct erased {
    std::uint32_t stag;
    bool by_peer;
  };
  std::mt19937 random(3);
  erased_keys keys;
  std::deque<erased> model;
  for (int step = 0; step < 10'000; ++step) {
    const std::uint32_t stag = 1 + static_cast<std::uint32_t>(random()) % 3000;  // some of them again
    const bool by_peer = random() % 2 == 0;
    keys.add(stag, by_peer);
    model.push_back({stag, by_peer});
    if (model.size() > erased_keys::most) model.pop_front();
    const std::uint32_t asked = static_cast<std::uint32_t>(random()) % 3001;
    bool known = false;
    bool ours = false;
    for (const erased& item : model) {
      known |= item.stag == asked;
      ours |= item.stag == asked && !item.by_peer;
    }
    ASSERT_EQ(keys.contain(asked), known) << step;
    ASSERT_EQ(keys.contain_ours(asked), ours) << step;
  }
}

}  // namespace
}  // namespace weft::net::software

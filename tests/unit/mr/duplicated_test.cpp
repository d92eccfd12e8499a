// SPDX-License-Identifier: Apache-2.0
// GCC 12 destroys twice what is made inside braces in an expression with co_await (docs/gcc-12.md). Memory that has two
// owners then says so. This file has those constructs: weft-check-coroutines: off.
#include "duplicated.hpp"

#include <weft/mr/porting/porting.hpp>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::duplicate;
using test::with_small_pool;

class mr_duplicated : public ::testing::Test {
 protected:
  mr_duplicated() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  /// Where the compiler duplicates the buffer of `body`, the program ends with words; elsewhere nothing is wrong.
  template <class Body>
  static void expect_duplicate(Body body) {
    if constexpr (test::compiler_destroys_twice) {
      expect_noticed(body);
    } else {
      with_small_pool(body);
    }
  }
  template <class Body>
  static void expect_noticed(Body body) {
    EXPECT_DEATH(with_small_pool(body), WORDS_OF_A_DUPLICATE("a buffer"));
  }
};

#define TEST_F_DUPLICATE(fixture, name) TEST_F_SCRIPT(fixture, name, (pool & source), expect_duplicate(WEFT_SCRIPT))

struct holder {
  int number = 0;
  buffer memory;
};

std::size_t size_of(holder given) { return given.memory.size(); }
std::size_t size_of_moved(holder&& given) { return given.memory.size(); }
task<std::size_t> size_later(holder given) { co_return given.memory.size(); }

TEST_F(mr_duplicated, buffer_in_a_variable_initialised_in_braces_is_noticed) {
  expect_duplicate([](pool& source) -> task<> {
    const holder made{1, co_await source.allocate(100)};
    EXPECT_EQ(made.memory.size(), 100U);
  });
  expect_duplicate([](pool& source) -> task<> {
    const holder made = {.number = 1, .memory = co_await source.allocate(100)};
    EXPECT_EQ(made.memory.size(), 100U);
  });
  expect_duplicate([](pool& source) -> task<> {
    const auto made = holder{1, co_await source.allocate(100)};
    EXPECT_EQ(made.memory.size(), 100U);
  });
}

TEST_F(mr_duplicated, buffer_in_an_argument_in_braces_is_noticed) {
  expect_duplicate([](pool& source) -> task<> { EXPECT_EQ(size_of({1, co_await source.allocate(100)}), 100U); });
  expect_duplicate([](pool& source) -> task<> {
    EXPECT_EQ(size_of_moved(holder{1, co_await source.allocate(100)}), 100U);
  });
  expect_duplicate([](pool& source) -> task<> {
    std::vector<holder> all;
    all.push_back({1, co_await source.allocate(100)});
    EXPECT_EQ(all[0].memory.size(), 100U);
  });
}

TEST_F_DUPLICATE(mr_duplicated, buffer_in_an_argument_in_braces_of_what_is_awaited_is_noticed) {
  buffer memory = co_await source.allocate(100);
  const std::size_t size = co_await size_later(holder{1, std::move(memory)});
  EXPECT_EQ(size, 100U);
}

TEST_F_DUPLICATE(mr_duplicated, buffer_in_an_assignment_in_braces_is_noticed) {
  holder made;
  made = {1, co_await source.allocate(100)};
  EXPECT_EQ(made.memory.size(), 100U);
}

TEST_F_DUPLICATE(mr_duplicated, buffer_captured_beside_an_await_is_noticed) {
  const auto made = [memory = co_await source.allocate(100)] { return memory.size(); };
  EXPECT_EQ(made(), 100U);
}

// What docs/gcc-12.md says to write instead.
TEST_F(mr_duplicated, buffer_named_before_it_is_held_has_one_owner) {
  with_small_pool([](pool& source) -> task<> {
    buffer memory = co_await source.allocate(100);
    holder made{1, std::move(memory)};
    EXPECT_EQ(size_of(std::move(made)), 100U);
    std::optional<buffer> maybe(co_await source.allocate(100));
    std::vector<buffer> all;
    all.push_back(co_await source.allocate(100));
    std::array<buffer, 1> few;
    few[0] = co_await source.allocate(100);
    EXPECT_EQ(maybe->size() + all[0].size() + few[0].size(), 300U);
  });
}

TEST_F(mr_duplicated, buffer_is_noticed_also_when_its_block_belongs_to_another_by_then) {
  expect_noticed([](pool& source) -> task<> {
    std::optional<buffer> first = co_await source.allocate(100);
    duplicate<buffer> second(*first);
    first.reset();
    const buffer next = co_await source.allocate(100);
    EXPECT_EQ(next.data(), second->data());
  });
}

TEST_F(mr_duplicated, buffer_is_noticed_while_an_operation_pins_it) {
  expect_noticed([](pool& source) -> task<> {
    std::optional<buffer> first = co_await source.allocate(100);
    std::optional<duplicate<buffer>> second(*first);
    const result<pin> operation = pin::share(*first);
    first.reset();
    second.reset();
  });
}

TEST_F(mr_duplicated, buffer_is_noticed_when_it_is_used) {
  const auto expect_use_noticed = [](auto use) {
    expect_noticed([use](pool& source) -> task<> {
      std::optional<buffer> first = co_await source.allocate(100);
      static duplicate<buffer> second(*first);
      first.reset();
      static_cast<void>(use(*second));
    });
  };
  expect_use_noticed([](buffer& used) { return used.slice(); });
  expect_use_noticed([](buffer& used) { return used.slice(1, 2); });
  expect_use_noticed([](buffer& used) { return pin::share(used); });
  expect_use_noticed([](buffer& used) { return pin::exclusive(used); });
}

TEST_F(mr_duplicated, shared_buffer_is_noticed) {
  const auto alone = [](pool& source) -> task<> {
    std::optional<shared_buffer> first(co_await source.allocate(100));
    const duplicate<shared_buffer> second(*first);
    first.reset();
  };
  EXPECT_DEATH(with_small_pool(alone), WORDS_OF_A_DUPLICATE("a pin of a buffer, or a shared_buffer"));
  // The duplicate takes the copy's place: the copy is the one that is noticed.
  const auto with_a_copy = [](pool& source) -> task<> {
    std::optional<shared_buffer> first(co_await source.allocate(100));
    const shared_buffer copy(*first);
    const duplicate<shared_buffer> second(*first);
    first.reset();
  };
  EXPECT_DEATH(with_small_pool(with_a_copy), WORDS_OF_A_DUPLICATE("a pin of a buffer, or a shared_buffer"));
}

TEST_F(mr_duplicated, region_made_in_braces_is_noticed) {
  struct table {
    int number = 0;
    region memory;
  };
  const auto body = [] {
    const auto domain = std::make_shared<test::recording_domain>();
    test::run([&]() -> task<> {
      table made{1, co_await domain->register_memory(std::vector<std::byte>(8), {.usage = usage::send})};
      co_await made.memory.release();
    });
    EXPECT_EQ(domain->deregistered, 1);
  };
  if constexpr (test::compiler_destroys_twice) {
    EXPECT_DEATH(body(), WORDS_OF_A_DUPLICATE("a region"));
  } else {
    body();
  }
}

TEST_F(mr_duplicated, region_is_noticed_when_it_is_used_or_destroyed) {
  const auto misuse = [](bool use) {
    std::vector<std::byte> memory(8);
    const auto domain = std::make_shared<test::recording_domain>();
    test::run([&]() -> task<> {
      std::optional<region> first = co_await domain->register_memory(std::span(memory), {.usage = usage::send});
      duplicate<region> second(*first);
      first.reset();
      if (use) static_cast<void>(second->slice());
    });
  };
  EXPECT_DEATH(misuse(true), WORDS_OF_A_DUPLICATE("a region"));
  EXPECT_DEATH(misuse(false), WORDS_OF_A_DUPLICATE("a region"));
}

TEST_F(mr_duplicated, pending_region_is_noticed) {
  const auto misuse = [] {
    std::vector<std::byte> memory(8);
    const auto domain = std::make_shared<test::recording_domain>();
    porting::event_queue ends;
    std::optional<porting::pending_region> first =
        porting::submit(*domain, std::span(memory), {.usage = usage::send}, ends, nullptr);
    const duplicate<porting::pending_region> second(*first);
    first.reset();
  };
  EXPECT_DEATH(misuse(), WORDS_OF_A_DUPLICATE("a pending region"));
}

// Its record is another handle's by then, and tells them apart all the same.
TEST_F(mr_duplicated, handle_is_noticed_also_when_a_new_one_took_its_place) {
  const auto misuse = [] {
    const auto domain = std::make_shared<test::recording_domain>();
    test::run([&]() -> task<> {
      std::optional<region> first = co_await domain->register_memory(std::vector<std::byte>(8), {.usage = usage::send});
      const duplicate<region> second(*first);
      first.reset();
      const region next = co_await domain->register_memory(std::vector<std::byte>(8), {.usage = usage::send});
      first.reset();
    });
  };
  EXPECT_DEATH(misuse(), WORDS_OF_A_DUPLICATE("a region"));
}

TEST_F(mr_duplicated, lock_of_a_mutex_is_noticed) {
  const auto misuse = [] {
    test::run([]() -> task<> {
      mutex door;
      std::optional<mutex::lock_guard> first = co_await door.lock();
      std::optional<duplicate<mutex::lock_guard>> second(*first);
      first.reset();
      const mutex::lock_guard next = co_await door.lock();
      second.reset();
    });
  };
  EXPECT_DEATH(misuse(), WORDS_OF_A_DUPLICATE("a lock of a mutex"));
}

}  // namespace
}  // namespace weft::mr

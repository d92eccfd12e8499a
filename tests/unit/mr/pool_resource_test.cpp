// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/pool_resource.hpp>

#include <memory_resource>
#include <numeric>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

class pool_resource_test : public ::testing::Test {
 protected:
  template <class Body>
  void with_pool(Body body) {
    test::run([&]() -> task<> {
      pool source(std::make_shared<test::recording_domain>(),
                  {.max_bytes = 2 << 20, .arena_bytes = 1 << 20, .huge_pages = false});
      co_await body(source);
    });
  }
};

TEST_F(pool_resource_test, lets_containers_live_in_registered_memory) {
  with_pool([](pool& source) -> task<> {
    pool_resource resource(source);
    co_await resource.reserve(1);  // has the pool make an arena
    {
      std::pmr::vector<std::uint32_t> numbers(&resource);
      for (std::uint32_t i = 0; i < 10000; ++i) numbers.push_back(i);
      const slice all = resource.slice(std::as_writable_bytes(std::span(numbers)));
      EXPECT_EQ(all.size(), 40000u);
      EXPECT_NE(all.record()->registration.local_key, 0u);
      const slice part = resource.slice(std::as_writable_bytes(std::span(numbers).subspan(5000, 10)));
      EXPECT_EQ(reinterpret_cast<std::uint32_t*>(part.data())[3], 5003u);
      EXPECT_EQ(resource.allocations(), 1u);
    }
    EXPECT_EQ(resource.allocations(), 0u);
  });
}

TEST_F(pool_resource_test, aligns_as_asked_for) {
  with_pool([](pool& source) -> task<> {
    pool_resource resource(source);
    co_await resource.reserve(1);
    for (const std::size_t alignment : {1U, 8U, 64U, 128U, 4096U, 65536U}) {
      void* const memory = resource.allocate(100, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0u);
      EXPECT_EQ(resource.slice({static_cast<std::byte*>(memory), 100}).data(), memory);
      resource.deallocate(memory, 100, alignment);
    }
  });
}

TEST_F(pool_resource_test, cannot_wait_and_says_so) {
  with_pool([](pool& source) -> task<> {
    pool_resource resource(source);
    EXPECT_THROW(static_cast<void>(resource.allocate(100)), std::bad_alloc);       // there is no arena yet
    EXPECT_THROW(static_cast<void>(resource.allocate(10 << 20)), std::bad_alloc);  // and never one so large
    co_await resource.reserve(600 << 10);
    void* const memory = resource.allocate(600 << 10);
    EXPECT_THROW(static_cast<void>(resource.allocate(600 << 10)), std::bad_alloc);
    resource.deallocate(memory, 600 << 10);
  });
}

TEST_F(pool_resource_test, makes_slices_of_its_own_memory_alone) {
  with_pool([](pool& source) -> task<> {
    pool_resource resource(source);
    co_await resource.reserve(100);
    auto* const memory = static_cast<std::byte*>(resource.allocate(100));
    std::byte other{};
    EXPECT_EQ(test::code_thrown_by([&] { return resource.slice({&other, 1}); }), errc::out_of_range);
    EXPECT_EQ(test::code_thrown_by([&] { return resource.slice({memory, 101}); }), errc::out_of_range);
    resource.deallocate(memory, 100);
    EXPECT_EQ(test::code_thrown_by([&] { return resource.slice({memory, 1}); }), errc::out_of_range);
  });
}

TEST_F(pool_resource_test, destroyed_before_its_containers_ends_the_program_with_words) {
  with_pool([](pool& source) -> task<> {
    pool_resource kept(source);
    co_await kept.reserve(100);
    EXPECT_DEATH(
        {
          pool_resource resource(source);
          static_cast<void>(resource.allocate(100));
        },
        "before its containers");
  });
}

}  // namespace
}  // namespace weft::mr

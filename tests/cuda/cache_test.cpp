// SPDX-License-Identifier: Apache-2.0
// A cache of registrations of a GPU's memory.
#include <weft/mr/cache.hpp>

#include "kit/failure.hpp"
#include "mr/support.hpp"
#include "support.hpp"

namespace weft::test {
namespace {

constexpr std::size_t leased_bytes = 4096;

class cache_of_a_gpu : public with_gpu {
 protected:
  // Leases and lets go.
  task<std::uint64_t> touch(mr::cache& cache, std::span<std::byte> range) {
    const mr::lease held = co_await cache.lease(range, mr::usage::send, gpu.get());
    EXPECT_EQ(held.slice().kind(), mr::memory_kind::device);
    co_return held.generation();
  }

  std::shared_ptr<recording_domain> domain =
      std::make_shared<recording_domain>(mr::domain_capabilities{.usages = mr::known_usages, .device_memory = true});
};

TEST_F(cache_of_a_gpu, keeps_memory_registered_with_a_monitor_and_without) {
  for (const auto monitor : {mr::cache_monitor::none, mr::cache_monitor::userfaultfd}) {
    run([&]() -> task<> {
      const auto memory = gpu->allocate(leased_bytes);
      mr::cache cache(*domain, {.monitor = monitor});
      const std::uint64_t first = co_await touch(cache, memory.bytes());
      EXPECT_EQ(co_await touch(cache, memory.bytes()), first);
      EXPECT_EQ(co_await touch(cache, memory.bytes().subspan(100, 50)), first);
    });
  }
  EXPECT_EQ(domain->registered, 2);
}

TEST_F(cache_of_a_gpu, registers_anew_what_was_freed_and_allocated_at_the_same_address) {
  run([&]() -> task<> {
    mr::cache cache(*domain);
    auto memory = gpu->allocate(leased_bytes);
    const std::byte* const place = memory.data();
    mr::lease held = co_await cache.lease(memory.bytes(), mr::usage::send, gpu.get());
    const std::uint64_t first = co_await touch(cache, memory.bytes());
    memory = {};
    memory = gpu->allocate(leased_bytes);
    EXPECT_EQ(memory.data(), place);
    const std::uint64_t second = co_await touch(cache, memory.bytes().subspan(100, 50));
    EXPECT_NE(second, first);
    EXPECT_FALSE(held.current());
    const std::uint64_t third = co_await touch(cache, memory.bytes());
    EXPECT_EQ(co_await touch(cache, memory.bytes().subspan(100, 50)), third);
  });
  while (domain->statistics().regions != 0) std::this_thread::yield();  // workers end them
}

TEST_F(cache_of_a_gpu, serves_threads_that_lease_the_same_memory_at_once) {
  const auto memory = gpu->allocate(leased_bytes);
  mr::cache cache(*domain);
  const auto lease_often = [&] {
    run([&]() -> task<> {
      for (int i = 0; i < 50; ++i) {
        co_await touch(cache, memory.bytes());
        cache.invalidate(memory.bytes());
      }
    });
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(lease_often);
}

TEST_F(cache_of_a_gpu, refuses_memory_that_is_no_devices) {
  run([&]() -> task<> {
    mr::cache cache(*domain);
    std::vector<std::byte> host(leased_bytes);
    EXPECT_EQ(co_await code_of(cache.lease(host, mr::usage::send, gpu.get())), errc::invalid_argument);
  });
  EXPECT_EQ(domain->registered, 0);
}

}  // namespace
}  // namespace weft::test

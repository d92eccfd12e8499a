// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU: what is found, what is refused, and who owns it.
#include <weft/mr/cuda/driver.hpp>
#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/device/owner_keys.hpp>

#include <latch>

#include "kit/child.hpp"
#include "kit/thrown.hpp"
#include "support.hpp"

namespace weft::test {
namespace {

class cuda_device : public with_gpu {
 protected:
  void expect_refusal_to_find(errc code, std::span<const std::byte> memory,
                              std::initializer_list<std::string_view> parts = {}) const {
    expect_refusal(
        code, [&] { return gpu->find(memory); }, parts);
  }
};

TEST_F(cuda_device, finds_the_allocation_around_an_address) {
  const auto memory = gpu->allocate(10000);
  const auto whole = gpu->find(memory.bytes());
  const auto part = gpu->find(memory.bytes().subspan(9000, 1000));
  EXPECT_EQ(whole.bytes.data(), memory.data());
  EXPECT_EQ(whole.bytes.size(), 10000U);
  EXPECT_EQ(part.bytes.data(), memory.data());
  EXPECT_EQ(part.id, whole.id);
}

TEST_F(cuda_device, memory_at_the_address_of_freed_memory_has_another_id) {
  auto memory = gpu->allocate(4096);
  const auto before = gpu->find(memory.bytes());
  memory = {};
  memory = gpu->allocate(4096);
  const auto after = gpu->find(memory.bytes());
  EXPECT_EQ(after.bytes.data(), before.bytes.data());
  EXPECT_NE(after.id, before.id);
}

TEST_F(cuda_device, finds_no_host_memory_not_even_pinned) {
  std::vector<std::byte> host(4096);
  expect_refusal_to_find(errc::invalid_argument, host);
  const pinned_bytes pinned(gpu, random_bytes(4096, 1));
  expect_refusal_to_find(errc::invalid_argument, const_cast<pinned_bytes&>(pinned).bytes(), {"not memory of a device"});
  expect_refusal_to_find(errc::invalid_argument, {});
}

TEST_F(cuda_device, finds_no_freed_memory) {
  auto memory = gpu->allocate(4096);
  const auto bytes = memory.bytes();
  memory = {};
  expect_refusal_to_find(errc::invalid_argument, bytes);
}

TEST_F(cuda_device, refuses_memory_that_reaches_beyond_its_allocation) {
  const auto memory = gpu->allocate(5000);
  expect_refusal_to_find(errc::invalid_argument, {memory.data() + 4000, 1001}, {"ends 1000 bytes after"});
  expect_refusal_to_find(errc::invalid_argument, {memory.data() + 1, SIZE_MAX});
}

TEST_F(cuda_device, refuses_managed_memory_and_says_what_to_take) {
  const auto memory = driver.allocate(0, 4096, foreign_memory::managed);
  expect_refusal_to_find(errc::invalid_argument, memory, {"cudaMalloc"});
  driver.free(memory);
}

TEST_F(cuda_device, refuses_memory_of_another_device_and_names_it) {
  const auto other = open_stand_in(1);
  const auto memory = other->allocate(4096);
  expect_refusal_to_find(errc::wrong_device, memory.bytes(), {"cuda:0", "cuda:1"});
}

TEST_F(cuda_device, refuses_memory_of_another_context) {
  const auto memory = driver.allocate(0, 4096, foreign_memory::other_context);
  expect_refusal_to_find(errc::wrong_device, memory);
  driver.free(memory);
}

TEST_F(cuda_device, finds_mapped_memory_which_belongs_to_no_context) {
  const auto memory = driver.allocate(0, 4096, foreign_memory::mapped);
  EXPECT_EQ(gpu->find(memory).bytes.data(), memory.data());
  expect_refusal(errc::not_supported, [&] { return gpu->share(memory); });
  driver.free(memory);
}

TEST_F(cuda_device, whose_context_was_reset_is_closed) {
  const auto memory = gpu->allocate(4096);
  std::vector<std::byte> host(4096);
  driver.destroy_context(0);
  expect_refusal_to_find(errc::closed, memory.bytes());
  expect_refusal(errc::closed, [&] { return gpu->allocate(4096); });
  expect_refusal(errc::closed, [&] { return gpu->open_stream(); });
  expect_refusal(errc::closed, [&] { return gpu->pin(host); });
  expect_refusal(errc::closed, [&] { return gpu->share(memory.bytes()); });
  expect_refusal(errc::closed, [&] { return gpu->export_dmabuf(memory.bytes()); });
}

TEST_F(cuda_device, of_a_context_that_was_reset_does_nothing_to_the_next_one) {
  auto memory = gpu->allocate(4096);
  std::vector<std::byte> host(4096);
  ASSERT_TRUE(gpu->pin(host));
  driver.destroy_context(0);
  const auto anew = open_stand_in();
  const auto next = anew->allocate(4096);
  ASSERT_EQ(next.data(), memory.data());
  ASSERT_TRUE(anew->pin(host));
  expect_refusal_to_find(errc::closed, memory.bytes(), {"cudaDeviceReset"});
  expect_refusal(errc::closed, [&] { return gpu->allocate(4096); });
  memory = {};
  gpu->unpin(host);
  EXPECT_EQ(driver.counts().allocations, 1U);
  EXPECT_EQ(driver.counts().pinned, 1U);
  gpu = nullptr;
  EXPECT_NO_THROW(static_cast<void>(anew->find(next.bytes())));
  anew->unpin(host);
}

TEST_F(cuda_device, allocates_no_empty_memory_and_none_that_does_not_fit) {
  expect_refusal(errc::invalid_argument, [&] { return gpu->allocate(0); });
  expect_refusal(errc::no_memory, [&] { return gpu->allocate(std::size_t{1} << 40); }, {"out of memory"});
}

TEST_F(cuda_device, memory_keeps_its_device_and_frees_itself) {
  auto memory = gpu->allocate(4096);
  gpu = nullptr;
  EXPECT_EQ(driver.counts().allocations, 1U);
  EXPECT_EQ(memory.device()->name(), "cuda:0");
  auto moved = std::move(memory);
  moved = {};
  EXPECT_EQ(driver.counts().allocations, 0U);
  EXPECT_EQ(driver.counts().retained, 0U);
}

TEST_F(cuda_device, opened_twice_retains_the_context_twice) {
  auto second = open_stand_in();
  EXPECT_EQ(driver.counts().retained, 2U);
  const auto memory = gpu->allocate(4096);
  EXPECT_EQ(second->find(memory.bytes()).bytes.data(), memory.data());
  second = nullptr;
  EXPECT_EQ(driver.counts().retained, 1U);
}

TEST_F(cuda_device, pins_memory_once) {
  std::vector<std::byte> host(4096);
  EXPECT_TRUE(gpu->pin(host));
  EXPECT_FALSE(gpu->pin(host));
  EXPECT_FALSE(open_stand_in(1)->pin(std::span(host).first(100)));
  gpu->unpin(host);
  EXPECT_TRUE(gpu->pin(host));
  gpu->unpin(host);
  EXPECT_EQ(driver.counts().pinned, 0U);
}

TEST_F(cuda_device, leaves_the_current_context_of_the_thread_alone) {
  const auto other = open_stand_in(1);
  const auto use_everything = [this] {
    const auto memory = gpu->allocate(4096);
    static_cast<void>(gpu->find(memory.bytes()));
    std::vector<std::byte> host(4096);
    expect_refusal_to_find(errc::invalid_argument, host);
    const pinned_bytes pinned(gpu, host);
    const auto stream = gpu->open_stream();
    stream->copy(memory.data(), host.data(), host.size()).value();
    stream->mark().value();
    stream->synchronize();
    static_cast<void>(stream->reached().value());
  };
  use_everything();
  EXPECT_EQ(current_context_of(driver), nullptr);

  mr::cuda::context_handle theirs = nullptr;
  driver.function<mr::cuda::status(mr::cuda::context_handle*, int)>("cuDevicePrimaryCtxRetain")(&theirs, 1);
  driver.function<mr::cuda::status(mr::cuda::context_handle)>("cuCtxPushCurrent_v2")(theirs);
  use_everything();
  EXPECT_EQ(current_context_of(driver), theirs);
  driver.function<mr::cuda::status(mr::cuda::context_handle*)>("cuCtxPopCurrent_v2")(&theirs);
  driver.function<mr::cuda::status(int)>("cuDevicePrimaryCtxRelease_v2")(1);
}

// The bytes of a dma-buf of the stand-in, from `offset` on.
std::vector<std::byte> content_of(const mr::device_dmabuf& buffer, std::size_t bytes) {
  const off_t begin = ::lseek(buffer.descriptor, 0, SEEK_CUR) + static_cast<off_t>(buffer.offset);
  std::vector<std::byte> content(bytes);
  EXPECT_EQ(::pread(buffer.descriptor, content.data(), bytes, begin), static_cast<ssize_t>(bytes));
  return content;
}

TEST_F(cuda_device, exports_whole_pages_around_memory_as_a_dma_buf) {
  const auto memory = gpu->allocate(100000);
  const auto bytes = random_bytes(100000, 1);
  driver.poke(memory.bytes(), bytes);
  for (const std::size_t offset : {0UL, 1UL, 5000UL, 70000UL}) {
    const auto buffer = gpu->export_dmabuf(memory.bytes().subspan(offset, 30000));
    EXPECT_LT(buffer.offset, 4096U);
    EXPECT_TRUE(std::ranges::equal(content_of(buffer, 30000), std::span(bytes).subspan(offset, 30000)));
    ::close(buffer.descriptor);
  }
}

TEST_F(cuda_device, makes_copies_synchronous_for_memory_that_it_exports) {
  const auto memory = gpu->allocate(4096);
  EXPECT_FALSE(driver.is_synchronous(memory.data()));
  ::close(gpu->export_dmabuf(memory.bytes()).descriptor);
  EXPECT_TRUE(driver.is_synchronous(memory.data()));
}

TEST_F(cuda_device, exports_mapped_memory_too_which_cannot_be_made_synchronous) {
  const auto memory = driver.allocate(0, 4096, foreign_memory::mapped);
  ::close(gpu->export_dmabuf(memory).descriptor);
  driver.free(memory);
}

TEST_F(cuda_device, makes_what_rdma_devices_have_written_visible_or_says_why_not) {
  gpu->make_writes_visible();
  driver.fail_next("cuFlushGPUDirectRDMAWrites", 801);
  expect_refusal(errc::not_supported, [&] { gpu->make_writes_visible(); });
}

TEST_F(cuda_device, without_dma_bufs_says_what_they_need) {
  driver.set_dma_buf(false);
  const auto memory = gpu->allocate(4096);
  expect_refusal(errc::not_supported, [&] { return gpu->export_dmabuf(memory.bytes()); }, {"open kernel modules"});
}

TEST_F(cuda_device, in_a_forked_child_is_closed) {
  const auto allocate = [&] { return gpu->allocate(4096); };
  EXPECT_EQ(end_of(fork_for([&] { return code_thrown_by(allocate) == errc::closed ? 0 : 1; })), 0);
}

// ---- keys of memory that copies use ----

// Each of two executors copies on a GPU of its own, and closes the key that the other one's copy uses.
TEST(owner_keys, are_closed_by_executors_whose_copies_use_each_others) {
  const stand_in driver;
  mr::detail::owner_keys& keys = mr::detail::owner_keys::of_process();
  constexpr std::size_t bytes = 4096;
  struct side {
    std::shared_ptr<mr::memory_device> gpu;
    mr::device_memory memory = gpu->allocate(bytes);
    mr::memory_record record{};
    std::uint64_t key = mr::detail::owner_keys::of_process().open(
        {.record = &record, .device = gpu, .memory = memory.bytes(), .uses = mr::usage::read_src});
  };
  std::array<side, 2> sides{side{.gpu = open_stand_in(0)}, side{.gpu = open_stand_in(1)}};
  std::latch both_copy(2);
  std::latch both_close(2);
  const auto run = [&](side& own, const side& other) {
    executor home;
    std::vector<std::byte> host(bytes);
    home.run([&]() -> task<> {
      mr::detail::copy_engine& engine = *co_await mr::detail::copy_engine::of(own.gpu);
      const mr::detail::copy_engine::user polled(engine);
      mr::detail::owner_key_use use;
      EXPECT_EQ(keys.begin({.key = own.key, .bytes = bytes, .purpose = mr::usage::read_src}, use),
                mr::detail::owner_access::done);
      mr::detail::copy_operation copy(engine.out(), host.data(), own.memory.data(), bytes, std::move(use));
      co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
        all.spawn(std::move(copy));
        co_await yield();
        both_copy.arrive_and_wait();
        both_close.count_down();
        mr::detail::copy_engine::close_key(other.key);
      });
    }());
  };
  driver.hold();
  std::thread another([&] { run(sides[1], sides[0]); });
  std::thread releasing([&] {
    both_close.wait();
    driver.release();
  });
  run(sides[0], sides[1]);
  another.join();
  releasing.join();
}

}  // namespace
}  // namespace weft::test

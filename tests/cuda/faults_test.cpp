// SPDX-License-Identifier: Apache-2.0
// Calls of the driver that fail, one after another, in the whole use of a GPU.
#include "support.hpp"

namespace weft::test {
namespace {

constexpr std::size_t bytes = 8192;

// Makes nearly the same calls each time, because it waits for the GPU rather than ask again.
void use_a_gpu() {
  const auto gpu = open_stand_in();
  const auto memory = gpu->allocate(bytes);
  static_cast<void>(gpu->find(memory.bytes()));
  const counted_event event(EFD_NONBLOCK);
  pinned_bytes host(gpu, random_bytes(bytes, 1));
  std::vector<std::byte> received(bytes);
  const auto stream = gpu->open_stream();

  stream->copy(memory.data(), host.data(), bytes).value();
  stream->copy(received.data(), memory.data(), bytes).value();
  const auto mark = stream->mark().value();
  EXPECT_LE(stream->reached().value(), mark);
  const bool notified = stream->notify(event.fd());
  stream->synchronize();
  EXPECT_EQ(stream->reached().value(), mark);
  EXPECT_EQ(received, host.bytes());
  EXPECT_EQ(event.read(), notified ? 1U : 0U);

  const auto borrowed = gpu->borrow_stream(nullptr);
  const auto theirs = borrowed->mark().value();
  wait_for(*borrowed, theirs);
  EXPECT_EQ(borrowed->reached().value(), theirs);
  static_cast<void>(gpu->share(memory.bytes()));
  const descriptor exported(gpu->export_dmabuf(memory.bytes()).descriptor, system_calls::kernel());
}

void fail_every_call_once(int result) {
  const stand_in driver;
  const auto before = driver.counts();
  std::uint64_t failures = 0;
  for (std::uint64_t number = 1;; ++number) {
    driver.fail_nth(number, result);
    bool failed = false;
    try {
      use_a_gpu();
    } catch (const error& failure) {
      failed = true;
      EXPECT_TRUE(says(failure.what(), "CUDA_ERROR") || says(failure.what(), "CUresult")) << failure.what();
      EXPECT_TRUE(says(failure.what(), "cuda:0") || says(failure.what(), "CUDA driver") ||
                  says(failure.what(), "CUDA devices"))
          << failure.what();
    }
    const bool had_its_turn = driver.has_failed();
    driver.fail_nth(0);
    EXPECT_EQ(driver.outstanding(), 0U) << "call " << number;
    EXPECT_EQ(driver.counts(), before) << "call " << number;
    EXPECT_EQ(current_context_of(driver), nullptr) << "call " << number;
    if (!had_its_turn) {
      EXPECT_FALSE(failed);
      break;
    }
    if (failed) ++failures;
  }
  EXPECT_GT(failures, 20U);
}

TEST(cuda_faults, every_call_that_finds_no_memory_is_a_clear_error_and_leaves_nothing_behind) {
  fail_every_call_once(2);
}

TEST(cuda_faults, every_call_that_fails_for_an_unknown_reason_is_a_clear_error_and_leaves_nothing_behind) {
  fail_every_call_once(999);
}

}  // namespace
}  // namespace weft::test

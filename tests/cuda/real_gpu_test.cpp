// SPDX-License-Identifier: Apache-2.0
// The real driver and a real GPU, where there are any.
#include "support.hpp"

namespace weft::test {
namespace {

TEST(cuda_real_gpu, copies_marks_notifies_and_tells_allocations_apart) {
  std::shared_ptr<mr::memory_device> gpu;
  try {
    gpu = mr::open_cuda();
  } catch (const error& failure) {
    GTEST_SKIP() << "this needs a GPU of NVIDIA and its driver: " << failure.what();
  }
  constexpr std::size_t size = (std::size_t{4} << 20) + 17;
  const counted_event event;
  auto first = gpu->allocate(size);
  const auto second = gpu->allocate(size);
  pinned_bytes sent(gpu, random_bytes(size, 1));
  pinned_bytes received(gpu, std::vector<std::byte>(size));
  EXPECT_FALSE(gpu->pin(sent.bytes()));
  const auto stream = gpu->open_stream();
  stream->copy(first.data(), sent.data(), size).value();
  stream->copy(second.data(), first.data(), size).value();
  stream->copy(received.data(), second.data(), size).value();
  const auto mark = stream->mark().value();
  ASSERT_TRUE(stream->notify(event.fd()));
  EXPECT_EQ(event.read(), 1U);  // blocks
  wait_for(*stream, mark);
  EXPECT_EQ(received.bytes(), sent.bytes());

  const auto found = gpu->find(first.bytes().subspan(100, 100));
  EXPECT_EQ(found.bytes.data(), first.data());
  EXPECT_GE(found.bytes.size(), size);
  EXPECT_NE(found.id, gpu->find(second.bytes()).id);
  first = {};
  first = gpu->allocate(size);
  EXPECT_NE(gpu->find(first.bytes()).id, found.id);
  expect_refusal(errc::invalid_argument, [&] { return gpu->find(sent.bytes()); });
  std::vector<std::byte> host(100);
  expect_refusal(errc::invalid_argument, [&] { return gpu->find(host); });

  const auto borrowed = gpu->borrow_stream(nullptr);
  wait_for(*borrowed, borrowed->mark().value());
  static_cast<void>(gpu->share(second.bytes()));
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// What the tests of GPU memory have in common.
#pragma once

#include <weft/mr/cuda/driver.hpp>
#include <weft/weft.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <initializer_list>
#include <random>

#include "kit/test.hpp"
#include "stand_in_control.hpp"

namespace weft::test {

inline std::shared_ptr<mr::memory_device> open_stand_in(int device = 0) {
  return mr::open_cuda({.device = device, .library = stand_in::library()});
}

/// A test with the driver that stands in, and its first device.
class with_gpu : public testing::Test {
 protected:
  stand_in driver;
  std::shared_ptr<mr::memory_device> gpu = open_stand_in();
};

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> bytes(count);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random() >> 8);
  return bytes;
}

inline bool says(std::string_view words, std::string_view part) { return words.find(part) != std::string_view::npos; }

/// Expects `call` to throw an error with that code, in whose words are all these parts.
template <class Call>
void expect_refusal(std::error_code code, Call call, std::initializer_list<std::string_view> parts = {}) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), code) << failure.what();
    for (const std::string_view part : parts) EXPECT_TRUE(says(failure.what(), part)) << failure.what();
  }
}

/// Host memory that is pinned for as long as this lives.
class pinned_bytes : private immovable {
 public:
  pinned_bytes(std::shared_ptr<mr::memory_device> gpu, std::vector<std::byte> content)
      : gpu_(std::move(gpu)), bytes_(std::move(content)), pinned_(gpu_->pin(bytes_)) {}
  ~pinned_bytes() {
    if (pinned_) gpu_->unpin(bytes_);
  }

  [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }
  [[nodiscard]] std::byte* data() noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

 private:
  std::shared_ptr<mr::memory_device> gpu_;
  std::vector<std::byte> bytes_;
  bool pinned_;
};

/// Which a stream notifies.
class counted_event : public descriptor {
 public:
  explicit counted_event(int flags = 0) : descriptor(::eventfd(0, EFD_CLOEXEC | flags), system_calls::kernel()) {}
  [[nodiscard]] std::uint64_t read() const {
    std::uint64_t count = 0;
    static_cast<void>(!::read(fd(), &count, sizeof count));
    return count;
  }
};

/// The context that the driver has for this thread.
inline mr::cuda::context_handle current_context_of(const stand_in& driver) {
  mr::cuda::context_handle found = nullptr;
  driver.function<mr::cuda::status(mr::cuda::context_handle*)>("cuCtxGetCurrent")(&found);
  return found;
}

/// Polls until the mark has been reached.
inline void wait_for(mr::copy_stream& stream, std::uint64_t mark) {
  while (stream.reached().value() < mark) std::this_thread::yield();
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/system/kernel_call.hpp>

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kit/standard.hpp"

namespace {

using weft::kernel_call;

TEST(kernel_call, returns_what_the_kernel_returns) { EXPECT_EQ(kernel_call(SYS_getpid), ::getpid()); }

TEST(kernel_call, returns_failures_as_negative_numbers_and_leaves_errno_alone) {
  errno = 0;
  EXPECT_EQ(kernel_call(SYS_close, -1), -EBADF);
#if defined(__x86_64__) && !defined(__ILP32__)
  EXPECT_EQ(errno, 0);
#endif
}

TEST(kernel_call, passes_six_arguments) {
  constexpr std::size_t bytes = 8192;
  const long place =
      kernel_call(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, std::size_t{0});
  ASSERT_GT(place, 0);
  auto* const memory = reinterpret_cast<std::byte*>(place);  // NOLINT(performance-no-int-to-ptr)
  memory[bytes - 1] = std::byte{7};
  EXPECT_EQ(kernel_call(SYS_munmap, memory, bytes), 0);
}

// The compiler must neither keep the bytes from before the call nor read them before it.
TEST(kernel_call, sees_and_changes_memory) {
  std::array<int, 2> ends{};
  ASSERT_EQ(kernel_call(SYS_socketpair, AF_UNIX, int{SOCK_STREAM}, 0, ends.data()), 0);
  std::array<char, 5> out = {'w', 'e', 'f', 't', '!'};
  std::array<char, 5> in{};
  out[4] = '.';
  EXPECT_EQ(kernel_call(SYS_sendto, ends[0], out.data(), out.size(), 0, nullptr, socklen_t{0}), 5);
  EXPECT_EQ(kernel_call(SYS_recvfrom, ends[1], in.data(), in.size(), 0, nullptr, nullptr), 5);
  EXPECT_EQ(std::string_view(in.data(), in.size()), "weft.");
  for (const int end : ends) EXPECT_EQ(kernel_call(SYS_close, end), 0);
}

}  // namespace

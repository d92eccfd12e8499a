// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that two processes use.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "share_opener.hpp"
#include "support.hpp"

namespace weft::test {
namespace {

struct answer {
  int exit_code = -1;
  std::vector<std::byte> content;
  std::string words{};
};

std::vector<std::byte> read_all(int descriptor) {
  std::vector<std::byte> all;
  std::array<std::byte, 4096> some;
  for (ssize_t count = 0; (count = ::read(descriptor, some.data(), some.size())) > 0;) {
    all.insert(all.end(), some.begin(), some.begin() + count);
  }
  ::close(descriptor);
  return all;
}

// Has another process carry the order out.
answer send(const share_order& order) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  std::array<int, 2> errors{};
  EXPECT_TRUE(::pipe2(in.data(), O_CLOEXEC) == 0 && ::pipe2(out.data(), O_CLOEXEC) == 0 &&
              ::pipe2(errors.data(), O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  std::string path = CUDA_SHARE_OPENER;
  std::array<char*, 2> arguments{path.data(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(::posix_spawn(&child, path.c_str(), &actions, nullptr, arguments.data(), environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  for (const int theirs : {in[0], out[1], errors[1]}) ::close(theirs);
  EXPECT_EQ(::write(in[1], &order, sizeof order), static_cast<ssize_t>(sizeof order));
  ::close(in[1]);

  answer got{.content = read_all(out[0])};
  const auto words = read_all(errors[0]);
  got.words.assign(reinterpret_cast<const char*>(words.data()), words.size());
  int state = 0;
  ::waitpid(child, &state, 0);
  if (WIFEXITED(state)) got.exit_code = WEXITSTATUS(state);
  return got;
}

using cuda_share = with_gpu;

TEST_F(cuda_share, another_process_reads_and_writes_the_memory) {
  for (const std::size_t size : {3000UL, 2UL << 20}) {
    const auto memory = gpu->allocate(size);
    const auto bytes = random_bytes(size, 1);
    driver.poke(memory.bytes(), bytes);
    const auto part = memory.bytes().subspan(1000, 2000);
    const auto got = send({.device = 0, .shared = gpu->share(part), .bytes = part.size()});
    EXPECT_EQ(got.exit_code, 0) << got.words;
    EXPECT_TRUE(std::ranges::equal(got.content, std::span(bytes).subspan(1000, 2000)));
    auto expected = bytes;
    for (std::byte& one : std::span(expected).subspan(1000, 2000)) one = ~one;
    EXPECT_EQ(driver.peek(memory.bytes()), expected);
  }
}

TEST_F(cuda_share, memory_that_was_freed_meanwhile_is_not_opened) {
  auto memory = gpu->allocate(4096);
  const auto shared = gpu->share(memory.bytes());
  memory = {};
  memory = gpu->allocate(4096);
  const auto got = send({.device = 0, .shared = shared, .bytes = 4096});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_TRUE(says(got.words, "another process shares")) << got.words;
}

TEST_F(cuda_share, an_offset_outside_the_allocation_is_refused) {
  const auto memory = gpu->allocate(4096);
  auto shared = gpu->share(memory.bytes());
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{4097}, UINT64_MAX}) {
    shared.offset = offset;
    const auto got = send({.device = 0, .shared = shared, .bytes = 4096});
    EXPECT_EQ(got.exit_code, 1);
    EXPECT_TRUE(says(got.words, "4096 bytes")) << got.words;
  }
}

TEST_F(cuda_share, a_handle_for_another_device_is_refused) {
  const auto memory = gpu->allocate(4096);
  const auto got = send({.device = 1, .shared = gpu->share(memory.bytes()), .bytes = 4096});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_TRUE(says(got.words, "memory of cuda:0")) << got.words;
}

TEST_F(cuda_share, every_call_that_fails_while_it_is_opened_leaves_nothing_open) {
  const auto memory = gpu->allocate(4096);
  const auto shared = gpu->share(memory.bytes());
  int failures = 0;
  for (std::uint64_t number = 1; number <= 16; ++number) {
    const auto got = send({.device = 0, .shared = shared, .bytes = 4096, .fail_nth = number});
    EXPECT_TRUE(got.exit_code == 0 || got.exit_code == 1) << "call " << number << ": " << got.exit_code;
    if (got.exit_code == 1) ++failures;
  }
  EXPECT_GE(failures, 6);
}

TEST_F(cuda_share, a_handle_that_means_nothing_is_refused) {
  mr::device_share wild;
  std::ranges::fill(wild.handle, std::byte{0x5a});
  expect_refusal(errc::invalid_argument, [&] { return gpu->open_share(wild, 1); });
}

TEST_F(cuda_share, a_process_does_not_open_its_own) {
  const auto memory = gpu->allocate(4096);
  const auto shared = gpu->share(memory.bytes());
  expect_refusal(errc::invalid_argument, [&] { return gpu->open_share(shared, 4096); });
  EXPECT_EQ(driver.counts().opened, 0U);
}

}  // namespace
}  // namespace weft::test

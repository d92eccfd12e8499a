// SPDX-License-Identifier: Apache-2.0
// Memory that other processes can map too.
#include <weft/mr/system/mapping.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include "kit/child.hpp"
#include "kit/failing_system_calls.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::failing_system_calls;
using test::kib;
using test::memory_with_huge_pages;
using test::mib;
using test::system_call;

TEST(mapping, in_a_file_is_seen_by_whoever_maps_its_descriptor) {
  const mapping made = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  const mapping second = mapping::of_file(made.file(), made.size(), system_calls::kernel());
  EXPECT_NE(second.data(), made.data());
  EXPECT_TRUE(std::ranges::all_of(second, [](std::byte value) { return value == std::byte{0}; }));
  made.data()[64 * kib - 1] = std::byte{7};
  EXPECT_EQ(second.data()[64 * kib - 1], std::byte{7});
  second.data()[0] = std::byte{8};
  EXPECT_EQ(made.data()[0], std::byte{8});
}

TEST(mapping, in_a_file_cannot_be_made_shorter_or_longer_by_anybody) {
  const mapping made = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  const int file = made.file().descriptor;
  constexpr int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(::fcntl(file, F_GET_SEALS) & wanted, wanted);
  EXPECT_NE(::ftruncate(file, 4 * kib), 0);
  EXPECT_NE(::ftruncate(file, 128 * kib), 0);
  EXPECT_EQ(::fcntl(file, F_GETFD), FD_CLOEXEC);
}

TEST(mapping, in_a_file_has_its_pages_at_once) {
  const mapping made = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  struct stat what {};
  ASSERT_EQ(::fstat(made.file().descriptor, &what), 0);
  EXPECT_EQ(static_cast<std::size_t>(what.st_blocks) * 512, made.size());
}

TEST(mapping, of_a_file_begins_at_its_offset_and_leaves_the_descriptor_open) {
  const mapping whole = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  whole.data()[16 * kib] = std::byte{9};
  {
    mapping part =
        mapping::of_file({.descriptor = whole.file().descriptor, .offset = 16 * kib}, 8 * kib, system_calls::kernel());
    const mapping moved = std::move(part);
    EXPECT_EQ(moved.data()[0], std::byte{9});
    EXPECT_EQ(moved.size(), 8 * kib);
    EXPECT_EQ(moved.file().offset, 16 * kib);
    EXPECT_EQ(part.file().descriptor, -1);  // NOLINT(bugprone-use-after-move): what a move leaves
  }
  EXPECT_EQ(::fcntl(whole.file().descriptor, F_GETFD), FD_CLOEXEC);
}

TEST(mapping, of_a_file_that_cannot_be_mapped_says_why) {
  const auto attempt = [](const backing_file& file) {
    return [file] { static_cast<void>(mapping::of_file(file, 4 * kib, system_calls::kernel())); };
  };
  EXPECT_EQ(test::code_thrown_by(attempt({.descriptor = -1, .offset = 0})),
            std::error_code(EBADF, std::system_category()));
  const mapping whole = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  EXPECT_EQ(test::code_thrown_by(attempt({.descriptor = whole.file().descriptor, .offset = 5})),
            std::error_code(EINVAL, std::system_category()));
}

TEST(mapping, that_is_anonymous_has_no_file) {
  const mapping made(64 * kib, false, -1, system_calls::kernel());
  EXPECT_EQ(made.file().descriptor, -1);
}

/// How many calls `make(kernel)` makes, each of which fails once and leaves nothing behind.
int failing_calls_of(mapping (*make)(system_calls&)) {
  const std::size_t before = test::memory_files();
  test::counting_memory kernel;
  int failures = 0;
  for (bool failed = true; failed; failures += failed ? 1 : 0) {
    test::fail_call(failures + 1);
    try {
      const mapping made = make(kernel);
    } catch (const std::exception&) {
    }
    failed = test::call_has_failed();
    test::fail_call(0);
    EXPECT_EQ(test::memory_files(), before) << "call " << failures + 1;
    EXPECT_EQ(kernel.mapped, 0u) << "call " << failures + 1;
  }
  return failures;
}

TEST(mapping, in_a_file_that_cannot_be_made_is_an_error_and_leaves_nothing_behind) {
  const auto make = [](system_calls& kernel) { return mapping::in_memory_file(64 * kib, false, -1, kernel); };
  EXPECT_GE(failing_calls_of(make), 4);  // its making, its length, its seals and its mapping at least
}

// It has words for it that the memory is not this node's.
TEST(mapping, for_whose_words_there_is_no_memory_is_unmapped) {
  const auto make = [](system_calls& kernel) { return mapping(64 * kib, false, 5000, kernel); };
  EXPECT_GE(failing_calls_of(make), 1) << "the words have asked for no memory";
}

TEST(mapping, in_a_file_that_the_system_forbids_says_so) {
  failing_system_calls kernel{{.of = system_call::memfd_create, .number = EACCES}};
  const auto attempt = [&] { static_cast<void>(mapping::in_memory_file(64 * kib, false, -1, kernel)); };
  EXPECT_EQ(test::code_thrown_by(attempt), std::error_code(EACCES, std::system_category()));
  const std::string words = test::words_thrown_by(attempt);
  EXPECT_NE(words.find("memfd_create"), std::string::npos) << words;
}

TEST(mapping, in_a_file_whose_pages_are_not_to_be_had_is_an_error_and_no_signal_later) {
  const std::size_t before = test::memory_files();
  failing_system_calls kernel;
  const auto expect_outcome = [&](int advice, int allocation, std::error_code expected, std::size_t allocations) {
    kernel.fail({{.of = system_call::madvise, .number = advice}, {.of = system_call::fallocate, .number = allocation}});
    EXPECT_EQ(test::code_thrown_by([&] { return mapping::in_memory_file(64 * kib, false, -1, kernel); }), expected);
    EXPECT_EQ(kernel.made(1), allocations);
  };
  expect_outcome(ENOMEM, 0, errc::no_memory, 0);
  expect_outcome(EINVAL, ENOSPC, errc::no_memory, 1);  // as before Linux 5.14
  expect_outcome(EINVAL, 0, std::error_code(), 1);
  EXPECT_EQ(test::memory_files(), before);
}

TEST(mapping, in_a_file_has_its_pages_although_a_signal_comes) {
  failing_system_calls kernel{{.of = system_call::madvise, .number = EINVAL},  // as before Linux 5.14
                              {.of = system_call::fallocate, .number = EINTR, .times = 2}};
  const mapping made = mapping::in_memory_file(64 * kib, false, -1, kernel);
  EXPECT_EQ(kernel.made(1), 3U);
}

/// Has pages of that kind, and no larger ones for that reason; without a reason if `reason` is empty.
void expect_pages(const mapping& made, page_kind expected, std::string_view reason) {
  EXPECT_EQ(made.pages(), expected) << made.pages_reason();
  EXPECT_EQ(made.pages_reason().empty(), reason.empty()) << made.pages_reason();
  EXPECT_NE(made.pages_reason().find(reason), std::string::npos) << made.pages_reason();
}

TEST(mapping, takes_the_largest_pages_that_there_are_and_says_why_they_are_not_larger) {
  memory_with_huge_pages kernel;
  kernel.giant = 1;
  kernel.huge = 1;
  const auto expect_kind = [&](std::size_t bytes, page_kind expected, std::string_view reason) {
    const mapping made(bytes, true, -1, kernel);
    EXPECT_EQ(made.size(), bytes);
    expect_pages(made, expected, reason);
  };
  expect_kind(1024 * mib, page_kind::giant, "");
  expect_kind(1024 * mib, page_kind::huge, "1 GiB pages");
  kernel.huge = 1;
  expect_kind(2 * mib, page_kind::huge, "");
  expect_kind(1024 * mib, page_kind::transparent, "1 GiB pages");
  expect_kind(2 * mib, page_kind::transparent, "2 MiB pages");
  EXPECT_TRUE(kernel.bound_to.empty());
}

TEST(mapping, in_a_file_takes_the_largest_pages_that_there_are_and_says_why_they_are_not_larger) {
  memory_with_huge_pages kernel;
  kernel.giant = 1;
  kernel.huge = 1;
  const auto expect_kind = [&](std::size_t bytes, page_kind expected, std::string_view reason) {
    expect_pages(mapping::in_memory_file(bytes, true, -1, kernel), expected, reason);
  };
  expect_kind(1024 * mib, page_kind::giant, "");
  expect_kind(1024 * mib, page_kind::huge, "1 GiB pages");
  expect_kind(2 * mib, page_kind::transparent, "2 MiB pages");
  expect_kind(64 * kib, page_kind::small, "not a multiple of 2 MiB");
}

TEST(mapping, prefers_the_node_that_it_is_told_and_says_why_it_could_not) {
  memory_with_huge_pages kernel;
  EXPECT_EQ(mapping(mib, false, 3, kernel).node(), 3);
  EXPECT_EQ(kernel.bound_to, std::vector<unsigned long>{1UL << 3});
  kernel.refusal_to_bind = -ENOSYS;
  const mapping anywhere(mib, false, 1, kernel);
  EXPECT_EQ(anywhere.node(), -1);
  EXPECT_NE(anywhere.node_reason().find("NUMA node 1"), std::string::npos) << anywhere.node_reason();
  EXPECT_EQ(mapping(mib, false, 1'000'000, kernel).node(), -1);
}

TEST(mapping, of_this_machines_first_node_comes_from_there_or_is_had_all_the_same) {
  const mapping anonymous(mib, false, 0, system_calls::kernel());
  const mapping in_a_file = mapping::in_memory_file(mib, false, 0, system_calls::kernel());
  for (const mapping* made : {&anonymous, &in_a_file}) {
    made->data()[0] = std::byte{1};
    EXPECT_EQ(made->node() == 0, made->node_reason().empty()) << made->node_reason();
  }
}

TEST(mapping, in_a_file_is_not_a_childs) {
  const mapping made = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  const auto is_there = [&] { return ::msync(made.data(), made.size(), MS_ASYNC) == 0 || errno != ENOMEM; };
  EXPECT_EQ(test::end_of(test::fork_for(is_there)), 0);
}

}  // namespace
}  // namespace weft::mr

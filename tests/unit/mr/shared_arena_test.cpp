// SPDX-License-Identifier: Apache-2.0
// Arenas and regions in memory that other processes can map, and how a transport finds what to hand to them.
#include <weft/mr/system/mapping.hpp>

#include "kit/expect_failure.hpp"
#include "kit/failing_system_calls.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::kib;
constexpr pool_options two_arenas{.max_bytes = 128 * kib, .arena_bytes = 64 * kib, .huge_pages = false};

/// As a transport for one machine would have it: arenas that its peers can map.
class sharing_domain : public domain {
 public:
  sharing_domain() : domain("sharing", {.usages = known_usages}) {}

  mapping provide(std::size_t bytes, bool huge_pages, int node, system_calls& calls) override {
    return mapping::in_memory_file(bytes, huge_pages, node, calls);
  }

 private:
  registration do_register(std::span<std::byte>, const registration_options&) override { return {}; }
  void do_deregister(registration&) noexcept override {}
};

/// All arenas in one file, one behind the other.
class domain_of_one_file final : public sharing_domain {
 public:
  static constexpr std::size_t bytes = 512 * kib;

  mapping provide(std::size_t wanted, bool, int, system_calls& calls) override {
    const std::uint64_t from = used_;
    used_ += wanted;
    return mapping::of_file({.descriptor = whole_.file().descriptor, .offset = from}, wanted, calls);
  }
  [[nodiscard]] const mapping& whole() const noexcept { return whole_; }

 private:
  mapping whole_ = mapping::in_memory_file(bytes, false, -1, system_calls::kernel());
  std::uint64_t used_ = 64 * kib;
};

/// Where a slice lies in the file of its record.
std::uint64_t offset_in_file(const slice& memory) {
  const memory_record& record = *memory.record();
  return record.file.offset + static_cast<std::uint64_t>(memory.data() - record.bytes.data());
}

/// No file in memory is left of any test.
class shared_arenas : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(test::memory_files(), before); }

  const std::size_t before = test::memory_files();
};
using shared_regions = shared_arenas;

TASK_TEST_F(shared_arenas, are_found_by_their_buffers_and_seen_through_their_descriptor) {
  pool source(std::make_shared<sharing_domain>(), two_arenas);
  const buffer first = co_await source.allocate(100);
  const buffer second = co_await source.allocate(5000);
  std::memset(first.data(), 1, first.size());
  std::memset(second.data(), 2, second.size());
  const memory_record& record = *second.slice().record();
  EXPECT_GE(record.file.descriptor, 0);
  EXPECT_EQ(record.file.offset, 0u);
  EXPECT_EQ(record.bytes.size(), 64 * kib);
  const mapping peers = mapping::of_file(record.file, record.bytes.size(), system_calls::kernel());
  for (const buffer* each : {&first, &second}) {
    EXPECT_EQ(each->slice().record(), &record);
    EXPECT_EQ(std::memcmp(peers.data() + offset_in_file(each->slice()), each->data(), each->size()), 0);
  }
  peers.data()[offset_in_file(first.slice())] = std::byte{3};
  EXPECT_EQ(first.data()[0], std::byte{3});
}

TASK_TEST_F(shared_arenas, of_the_two_budgets_have_files_of_their_own) {
  pool source(std::make_shared<sharing_domain>(), two_arenas);
  const buffer sent = co_await source.allocate(100, budget::send);
  const buffer received = co_await source.allocate(100, budget::receive);
  EXPECT_NE(sent.slice().record()->file.descriptor, received.slice().record()->file.descriptor);
}

TASK_TEST_F(shared_arenas, in_one_file_say_where_they_begin) {
  const auto home = std::make_shared<domain_of_one_file>();
  pool source(home, two_arenas);
  const buffer sent = co_await source.allocate(100, budget::send);
  const buffer received = co_await source.allocate(3000, budget::receive);
  std::memset(sent.data(), 1, sent.size());
  std::memset(received.data(), 2, received.size());
  EXPECT_NE(sent.slice().record()->file.offset, received.slice().record()->file.offset);
  for (const buffer* each : {&sent, &received}) {
    const slice memory = each->slice();
    EXPECT_EQ(memory.record()->file.descriptor, home->whole().file().descriptor);
    EXPECT_GE(memory.record()->file.offset, 64 * kib);
    EXPECT_EQ(std::memcmp(home->whole().data() + offset_in_file(memory), each->data(), each->size()), 0);
  }
}

TASK_TEST_F(shared_arenas, of_buffers_that_outlive_the_pool_keep_their_file) {
  buffer left;
  {
    pool source(std::make_shared<sharing_domain>(), two_arenas);
    left = co_await source.allocate(100);
    ::testing::internal::CaptureStderr();  // builds with assertions report it
  }
  static_cast<void>(::testing::internal::GetCapturedStderr());
  EXPECT_EQ(test::memory_files(), before + 1);
  left.data()[0] = std::byte{4};
  const slice memory = left.slice();
  const mapping peers = mapping::of_file(memory.record()->file, 64 * kib, system_calls::kernel());
  EXPECT_EQ(peers.data()[offset_in_file(memory)], std::byte{4});
}

TASK_TEST_F(shared_arenas, that_cannot_be_made_are_an_error_and_leave_nothing_behind) {
  test::failing_system_calls kernel{{.of = test::system_call::memfd_create, .number = EMFILE}};
  pool_options options = two_arenas;
  options.system_calls = &kernel;
  pool source(std::make_shared<sharing_domain>(), options);
  EXPECT_TRUE(test::failed_with(co_await test::failure_of(source.allocate(100)), errc::no_memory, "memfd_create"));
}

TASK_TEST_F(shared_arenas, that_a_domain_does_not_ask_for_have_no_file) {
  pool source(std::make_shared<test::recording_domain>(), two_arenas);
  const buffer made = co_await source.allocate(100);
  EXPECT_EQ(made.slice().record()->file.descriptor, -1);
}

TASK_TEST_F(shared_regions, that_own_a_mapping_name_its_file) {
  const auto home = std::make_shared<sharing_domain>();
  mapping memory = mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel());
  std::byte* const place = memory.data();
  region made = co_await home->register_memory(std::move(memory), {.usage = usage::read_src});
  EXPECT_EQ(made.data(), place);
  made.data()[5000] = std::byte{5};
  const mapping peers = mapping::of_file(made.slice().record()->file, made.size(), system_calls::kernel());
  EXPECT_EQ(peers.data()[5000], std::byte{5});
  region borrowed = co_await home->register_memory(made.bytes(), {.usage = usage::read_src});
  EXPECT_EQ(borrowed.slice().record()->file.descriptor, -1);
  co_await borrowed.release();
  co_await made.release();
  auto pointer = std::make_unique<mapping>(mapping::in_memory_file(64 * kib, false, -1, system_calls::kernel()));
  const int descriptor = pointer->file().descriptor;
  const region pointed = co_await home->register_memory(std::move(pointer), {.usage = usage::read_src});
  EXPECT_EQ(pointed.slice().record()->file.descriptor, descriptor);
}

}  // namespace
}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/porting.hpp>
#include <weft/net/software/domain.hpp>

#include <linux/magic.h>
#include <sys/vfs.h>

#include "kit/address_space.hpp"
#include "kit/expect_failure.hpp"
#include "mr/support.hpp"
#include "stag_of.hpp"

namespace weft::net::software {
namespace {

class domain_test : public ::testing::Test {
 protected:
  access_status write(std::uint32_t key, std::uint64_t address) {
    const key_table::reader::batch inside(reader);
    const key_table::reader::place at = reader.write_place(key, address, 1, 1);
    if (at.status == access_status::ok) *at.data = std::byte{1};
    return at.status;
  }
  access_status read(std::uint32_t key, std::uint64_t address) {
    const key_table::reader::batch inside(reader);
    return reader.check_read(key, address, 1, 1);
  }
  task<mr::region> open(mr::registration_options options) {
    return domain->register_memory(std::span(memory), options);
  }
  task<mr::region> open_counted(mr::usage uses, const mr::porting::write_counter& counter) {
    mr::region made = co_await open({.usage = uses, .zero_based = true, .disabled = true});
    mr::porting::bind(made, counter);
    co_await mr::porting::enable(made);
    co_return made;
  }

  std::shared_ptr<software::domain> domain = std::make_shared<software::domain>(system_calls::kernel(), "iwarp");
  key_table::reader reader{domain->keys()};
  std::vector<std::byte> memory = std::vector<std::byte>(100);
};

TASK_TEST_F(domain_test, memory_for_our_own_operations_has_no_key) {
  const mr::usage local =
      mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src | mr::usage::bind_window;
  const mr::region made = co_await open({.usage = local});
  EXPECT_EQ(domain->keys().size(), 0U);
  EXPECT_EQ(test::code_thrown_by([&] { return made.remote(); }), errc::access_denied);
}

TASK_TEST_F(domain_test, memory_for_atomics_is_open_to_nothing_else) {
  const mr::region made = co_await open({.usage = mr::usage::atomic_dst, .zero_based = true});
  const std::uint32_t key = test::stag_of(made.remote());
  EXPECT_EQ(read(key, 0), access_status::access);
  EXPECT_EQ(write(key, 0), access_status::access);
  const key_table::reader::batch inside(reader);
  EXPECT_EQ(reader.check_atomic(key, 8, 1), access_status::ok);
}

TEST_F(domain_test, a_key_out_of_range_cannot_be_requested) {
  const auto code = [&](std::uint64_t key) {
    return test::code_thrown_by(
        [&] { return domain->register_now(memory, {.usage = mr::usage::write_dst, .requested_key = key}); });
  };
  EXPECT_EQ(code(std::uint64_t{1} << 32), errc::out_of_range);
  EXPECT_EQ(code(UINT64_MAX), errc::out_of_range);
  EXPECT_EQ(code(0), errc::invalid_argument);
  EXPECT_EQ(domain->keys().size(), 0U);
}

TASK_TEST_F(domain_test, slices_of_several_ranges_lie_in_one_of_them) {
  const std::span all(memory);
  const std::span<std::byte> ranges[] = {all.subspan(50, 10), all.subspan(20, 20)};
  const mr::region made = co_await domain->register_memory(ranges, {.usage = mr::usage::send});
  EXPECT_EQ(made.slice(0, 10).data(), all.data() + 50);
  EXPECT_EQ(made.slice(12, 18).data(), all.data() + 22);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(9, 2); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(29, 2); }), errc::out_of_range);
}

TEST_F(domain_test, of_several_ranges_all_are_registered_or_none) {
  const std::span all(memory);
  const auto code = [&](std::span<const std::span<std::byte>> ranges) {
    const auto attempt = [&]() -> task<> {
      const mr::region made = co_await domain->register_memory(ranges, {.usage = mr::usage::write_dst});
    };
    const std::error_code found = test::code_thrown_by([&] { test::run(attempt); });
    EXPECT_EQ(domain->keys().size(), 0U);
    return found;
  };
  const std::span<std::byte> one_empty[] = {all.first(10), all.first(0)};
  const std::span<std::byte> one_null[] = {all.first(10), std::span(static_cast<std::byte*>(nullptr), 10)};
  const std::vector<std::span<std::byte>> too_many(domain->capabilities().max_ranges + 1, all);
  EXPECT_EQ(code({}), errc::zero_length);
  EXPECT_EQ(code(one_empty), errc::zero_length);
  EXPECT_EQ(code(one_null), errc::null_address);
  EXPECT_EQ(code(too_many), errc::not_supported);
}

TASK_TEST_F(domain_test, several_ranges_can_be_submitted_for_an_event) {
  const std::span all(memory);
  const std::span<std::byte> ranges[] = {all.first(10), all.last(10)};
  mr::porting::event_queue queue;
  const auto pending =
      mr::porting::submit(*domain, ranges, {.usage = mr::usage::write_dst, .zero_based = true}, queue, nullptr);
  auto event = co_await queue.next();
  const mr::region made = std::move(event.outcome).value();
  EXPECT_EQ(write(test::stag_of(made.remote()), 19), access_status::ok);
  EXPECT_EQ(memory[99], std::byte{1});
}

TASK_TEST_F(domain_test, nothing_can_be_bound_to_a_region_once_it_is_enabled) {
  const mr::porting::write_counter counter;
  mr::region made = co_await open_counted(mr::usage::write_dst, counter);
  EXPECT_EQ(test::code_thrown_by([&] { mr::porting::bind(made, counter); }), errc::invalid_argument);
  mr::region plain = co_await open({.usage = mr::usage::write_dst});
  EXPECT_EQ(test::code_thrown_by([&] { mr::porting::bind(plain, counter); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(mr::porting::remote_writes(plain, 1)); }),
            errc::invalid_argument);
}

TASK_TEST_F(domain_test, writes_of_peers_are_counted_for_every_region_that_a_counter_is_bound_to) {
  const mr::porting::write_counter counter;
  const mr::region first = co_await open_counted(mr::usage::write_dst, counter);
  const mr::region second = co_await open_counted(mr::usage::atomic_dst, counter);
  const key_table::reader::batch inside(reader);
  reader.written(test::stag_of(first.remote()), 1);
  std::uint64_t previous = 0;
  EXPECT_EQ(reader.atomic({.stag = test::stag_of(second.remote()), .operand = 1}, previous, 1), access_status::ok);
  reader.written(test::stag_of(second.remote()), 1);  // nobody may write there, so nobody has
  EXPECT_EQ(counter.value(), 2U);
}

TASK_TEST_F(domain_test, a_compare_swap_that_changes_nothing_is_not_counted) {
  const mr::porting::write_counter counter;
  const mr::region made = co_await open_counted(mr::usage::atomic_dst, counter);
  const key_table::reader::batch inside(reader);
  atomic_request asked{.operation = atomic_operation::compare_swap,
                       .stag = test::stag_of(made.remote()),
                       .operand = 5,
                       .mask = atomic_request::every_bit,
                       .compare = 0xBAD};
  std::uint64_t previous = 0;
  EXPECT_EQ(reader.atomic(asked, previous, 1), access_status::ok);
  EXPECT_EQ(counter.value(), 0U);
  asked.compare = previous;
  EXPECT_EQ(reader.atomic(asked, previous, 1), access_status::ok);
  EXPECT_EQ(counter.value(), 1U);
}

TASK_TEST_F(domain_test, a_counter_is_refused_by_a_region_that_no_peer_can_write_to) {
  const mr::porting::write_counter counter;
  mr::region read_only = co_await open({.usage = mr::usage::read_src, .disabled = true});
  EXPECT_EQ(test::code_thrown_by([&] { mr::porting::bind(read_only, counter); }), errc::access_denied);
  mr::region local = co_await open({.usage = mr::usage::send, .disabled = true});
  EXPECT_EQ(test::code_thrown_by([&] { mr::porting::bind(local, counter); }), errc::access_denied);
  mr::region for_windows = co_await open({.usage = mr::usage::bind_window, .disabled = true});
  mr::porting::bind(for_windows, counter);
}

TASK_TEST_F(domain_test, a_region_whose_writes_somebody_waits_for_is_busy) {
  const mr::porting::write_counter counter;
  mr::region made = co_await open_counted(mr::usage::write_dst, counter);
  std::error_code waiter;
  std::error_code release;
  const auto waiting = [&]() -> task<> { waiter = co_await test::code_of(mr::porting::remote_writes(made, 1)); };
  co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
    all.spawn(waiting());
    co_await yield();
    release = co_await test::code_of(made.release());
    all.request_stop();
  });
  EXPECT_EQ(release, errc::busy);
  EXPECT_EQ(waiter, errc::canceled);
  co_await made.release();
}

TASK_TEST_F(domain_test, a_refresh_keeps_key_and_address_and_sees_what_is_mapped_there_now) {
  constexpr std::size_t bytes = 8192;
  const test::address_space place(bytes);
  const std::span range = place.bytes();
  mr::region made = co_await domain->register_memory(range, {.usage = mr::usage::write_dst});
  const mr::remote_region before = made.remote();
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  EXPECT_EQ(::mmap(range.data(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0), range.data());
  co_await mr::porting::refresh(made, 0, 4096);
  co_await mr::porting::refresh(made);
  EXPECT_EQ(made.remote(), before);
  EXPECT_EQ(write(test::stag_of(before), before.address() + 5000), access_status::ok);
  EXPECT_EQ(range[5000], std::byte{1});
  EXPECT_EQ(co_await test::code_of(mr::porting::refresh(made, 4096, 4097)), errc::out_of_range);
  const std::array beyond{range.first(100), std::span(range.data() + 4096, 4097)};
  EXPECT_EQ(co_await test::code_of(mr::porting::refresh(made, beyond)), errc::out_of_range);
  co_await made.release();
}

class memory_of_all_kinds : public domain_test {
 protected:
  static constexpr std::size_t page = 4096;

  memory_of_all_kinds() { EXPECT_EQ(::ftruncate(file.fd(), 4 * page), 0); }
  void map_file(std::size_t from, std::size_t count) {
    ASSERT_NE(::mmap(&pages[from * page], count * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.fd(), 0),
              MAP_FAILED);
  }
  void protect(std::size_t which, int rights) { ASSERT_EQ(::mprotect(&pages[which * page], page, rights), 0); }
  [[nodiscard]] std::error_code registration_for(mr::usage uses) {
    return test::code_thrown_by([&] {
      mr::registration made = domain->register_now(pages, {.usage = uses});
      domain->deregister_now(made);
    });
  }
  void expect(std::error_code reading, std::error_code writing) {
    using mr::usage;
    for (const usage uses : {usage::none, usage::send, usage::write_src, usage::read_src, usage::flush_visibility}) {
      EXPECT_EQ(registration_for(uses), reading) << to_string(uses);
    }
    for (const usage uses : {usage::recv, usage::read_dst, usage::write_dst, usage::atomic_dst, usage::bind_window}) {
      EXPECT_EQ(registration_for(uses), writing) << to_string(uses);
    }
  }

  // Whether the kernel is to copy what lies there, as those say who go by the key and those who have the region.
  static bool may_shrink(software::domain& home, const mr::region& made) {
    const mr::remote_region remote = made.remote();
    key_table::reader own(home.keys());
    const key_table::reader::batch inside(own);
    const bool by_key = own.write_place(test::stag_of(remote), remote.address(), 1, 1).may_shrink;
    EXPECT_EQ(home.may_shrink(*made.slice().record()), by_key);
    return by_key;
  }

  const std::error_code fine{};
  const std::error_code bad_address{EFAULT, std::system_category()};
  const test::address_space place{4 * page};
  const std::span<std::byte> pages = place.bytes();
  const descriptor file{::memfd_create("pages", MFD_CLOEXEC), system_calls::kernel()};
};

TEST_F(memory_of_all_kinds, that_is_there_can_be_registered) {
  expect(fine, fine);
  map_file(1, 2);
  expect(fine, fine);
}

TEST_F(memory_of_all_kinds, that_is_not_mapped_is_refused) {
  ::munmap(&pages[2 * page], page);
  expect(bad_address, bad_address);
  const auto refused = test::failure_thrown_by([&] { return domain->register_now(pages, {.usage = mr::usage::send}); });
  EXPECT_TRUE(test::says(refused, "not mapped"));
}

TEST_F(memory_of_all_kinds, that_may_only_be_read_is_for_what_reads_it) {
  protect(3, PROT_READ);
  expect(fine, bad_address);
}

TEST_F(memory_of_all_kinds, that_nobody_may_touch_is_refused) {
  protect(1, PROT_NONE);
  expect(bad_address, bad_address);
}

TEST_F(memory_of_all_kinds, beyond_the_end_of_its_file_is_refused) {
  map_file(0, 4);
  expect(fine, fine);
  ASSERT_EQ(::ftruncate(file.fd(), 3 * page), 0);
  expect(bad_address, bad_address);
}

TASK_TEST_F(memory_of_all_kinds, that_has_changed_is_looked_at_by_a_refresh) {
  mr::region made = co_await domain->register_memory(pages, {.usage = mr::usage::write_dst});
  const mr::remote_region remote = made.remote();
  protect(0, PROT_READ);
  EXPECT_EQ(co_await test::code_of(mr::porting::refresh(made)), bad_address);
  EXPECT_EQ(made.remote(), remote);
  map_file(0, 4);
  co_await mr::porting::refresh(made);
  EXPECT_TRUE(may_shrink(*domain, made));
  co_await made.release();
}

TASK_TEST_F(memory_of_all_kinds, that_has_changed_is_looked_at_by_a_refresh_of_several_ranges) {
  mr::region made = co_await domain->register_memory(pages, {.usage = mr::usage::write_dst});
  const mr::remote_region remote = made.remote();
  constexpr std::array changed{std::size_t{0}, std::size_t{2}};
  const std::array ranges{pages.subspan(changed[0] * page, page), pages.subspan(changed[1] * page, page)};
  for (const std::size_t which : changed) {
    protect(which, PROT_READ);
    EXPECT_EQ(co_await test::code_of(mr::porting::refresh(made, ranges)), bad_address) << which;
    protect(which, PROT_READ | PROT_WRITE);
  }
  EXPECT_FALSE(may_shrink(*domain, made));
  for (const std::size_t which : changed) map_file(which, 1);
  co_await mr::porting::refresh(made, ranges);
  EXPECT_EQ(made.remote(), remote);
  EXPECT_TRUE(may_shrink(*domain, made));
  for (const std::size_t which : changed) {
    const std::size_t at = which * page + which;  // each maps the same page of the file
    EXPECT_EQ(write(test::stag_of(remote), remote.address() + at), access_status::ok);
    std::byte in_file{};
    EXPECT_EQ(::pread(file.fd(), &in_file, 1, static_cast<off_t>(which)), 1);
    EXPECT_EQ(in_file, std::byte{1}) << which;
  }
  co_await made.release();
}

// So the processor copies it: through the kernel that takes three times as long.
TASK_TEST_F(memory_of_all_kinds, that_is_direct_is_of_a_file_that_cannot_become_shorter) {
  auto own = mr::mapping::in_memory_file(4 * page, false, -1, system_calls::kernel());
  mr::region made = co_await domain->register_memory(std::move(own), {.usage = mr::usage::write_dst, .direct = true});
  EXPECT_FALSE(may_shrink(*domain, made));
  co_await made.release();
}

// Stands for a machine that has huge pages to spare.
class files_of_huge_pages final : public system_calls {
 public:
  int fstatfs(int, struct statfs* found) noexcept override {
    *found = {};
    found->f_type = HUGETLBFS_MAGIC;
    return 0;
  }
};

// Who can write the file can take pages away, and a processor that touches one then ends the process.
TASK_TEST_F(memory_of_all_kinds, that_is_direct_and_of_huge_pages_is_copied_through_the_kernel) {
  files_of_huge_pages calls;
  const auto home = std::make_shared<software::domain>(calls, "iwarp");
  auto own = mr::mapping::in_memory_file(4 * page, false, -1, system_calls::kernel());
  mr::region made = co_await home->register_memory(std::move(own), {.usage = mr::usage::write_dst, .direct = true});
  EXPECT_TRUE(may_shrink(*home, made));
  co_await made.release();
}

TEST_F(domain_test, what_iwarp_in_user_space_cannot_do_is_refused_by_name) {
  const auto expect_refused = [&](mr::registration_options options, std::string_view words) {
    const auto failure = test::failure_thrown_by([&] { return domain->register_now(memory, options); });
    EXPECT_TRUE(test::failed_with(failure, errc::not_supported, words));
  };
  expect_refused({.on_demand = true}, "iwarp with the option on_demand");
  expect_refused({.dmabuf = 1}, "dmabuf");
  expect_refused({.usage = mr::usage::flush_persistent}, "flush_persistent");
  EXPECT_EQ(domain->keys().size(), 0U);
}

TEST_F(domain_test, pins_nothing) { EXPECT_FALSE(domain->pins()); }

}  // namespace
}  // namespace weft::net::software

// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/file.hpp>

#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>

#include "kit/bytes.hpp"
#include "kit/failing_system_calls.hpp"
#include "kit/temporary_directory.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

constexpr file_options for_both{.access = file_access::read_write, .create = true};

std::vector<std::byte> filled(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  test::fill(bytes, seed);
  return bytes;
}

TASK_TEST(file, yields_the_bytes_that_were_written) {
  const test::temporary_directory place;
  const std::string name = place / "data";
  file both = co_await file::open(name, for_both);
  const std::vector<std::byte> written = filled(100'000, 1);
  EXPECT_EQ(co_await both.write_at(4096, written), written.size());
  co_await both.sync();
  EXPECT_EQ(co_await both.size(), 4096 + written.size());
  std::vector<std::byte> read(written.size());
  EXPECT_EQ(co_await both.read_at(4096, read), read.size());
  EXPECT_EQ(read, written);
  EXPECT_EQ(both.path(), name);
}

TASK_TEST(file, is_read_up_to_its_end_and_not_beyond) {
  const test::temporary_directory place;
  file both = co_await file::open(place / "short", for_both);
  const std::vector<std::byte> written = filled(100, 2);
  co_await both.write_at(0, written);
  std::vector<std::byte> room(1000, std::byte{7});
  EXPECT_EQ(co_await both.read_at(40, room), 60U);
  EXPECT_TRUE(std::equal(room.begin(), room.begin() + 60, written.begin() + 40));
  EXPECT_EQ(room[60], std::byte{7});
  EXPECT_EQ(co_await both.read_at(100, room), 0U);
  EXPECT_EQ(co_await both.read_at(1'000'000, room), 0U);
  EXPECT_EQ(co_await both.read_at(0, {}), 0U);
}

TASK_TEST(file, has_many_reads_and_writes_in_progress) {
  constexpr std::size_t block = 4096;
  constexpr unsigned blocks = 300;
  const test::temporary_directory place;
  file both = co_await file::open(place / "blocks", for_both);
  std::vector<std::vector<std::byte>> contents;
  for (unsigned i = 0; i < blocks; ++i) contents.push_back(filled(block, i));
  const auto write = [&](unsigned i) -> task<> { co_await both.write_at(i * block, contents[i]); };
  unsigned equal = 0;
  const auto compare = [&](unsigned i) -> task<> {
    std::vector<std::byte> room(block);
    co_await both.read_at(i * block, room);
    equal += room == contents[i] ? 1U : 0U;
  };
  std::vector<task<>> writes;
  std::vector<task<>> reads;
  for (unsigned i = 0; i < blocks; ++i) {
    writes.push_back(write(i));
    reads.push_back(compare(i));
  }
  co_await when_all(std::move(writes));
  co_await when_all(std::move(reads));
  EXPECT_EQ(equal, blocks);
}

TASK_TEST(file, that_cannot_be_opened_is_named) {
  const test::temporary_directory place;
  const std::string name = place / "absent";
  const auto failure = co_await test::failure_of(file::open(name));
  EXPECT_TRUE(test::failed_with(failure, std::errc::no_such_file_or_directory, "open " + name));
}

TASK_TEST(file, that_must_be_new_is_refused_where_there_is_one) {
  const test::temporary_directory place;
  constexpr file_options anew{.access = file_access::write, .create = true, .exclusive = true};
  static_cast<void>(co_await file::open(place / "once", anew));
  auto again = file::open(place / "once", anew);
  EXPECT_EQ(co_await test::code_of(std::move(again)), std::errc::file_exists);
}

TASK_TEST(file, is_truncated_only_where_that_was_asked_for) {
  const test::temporary_directory place;
  const std::vector<std::byte> written = filled(10, 3);
  file first = co_await file::open(place / "kept", for_both);
  co_await first.write_at(0, written);
  const file second = co_await file::open(place / "kept", for_both);
  EXPECT_EQ(co_await first.size(), 10U);
  constexpr file_options emptied{.access = file_access::write, .truncate = true};
  const file third = co_await file::open(place / "kept", emptied);
  EXPECT_EQ(co_await first.size(), 0U);
}

TEST(file, options_that_make_no_sense_are_refused_before_anything_happens) {
  const test::temporary_directory place;
  for (const file_options& options : {file_options{.access = file_access::write, .exclusive = true},
                                      file_options{.create = true, .truncate = true}}) {
    EXPECT_EQ(test::run(test::code_of(file::open(place / "untouched", options))), errc::invalid_argument);
  }
  EXPECT_FALSE(place.has("untouched"));
}

TASK_TEST(file, offsets_that_no_file_has_are_refused) {
  const test::temporary_directory place;
  file both = co_await file::open(place / "data", for_both);
  std::array<std::byte, 8> bytes{};
  for (const std::uint64_t offset : {std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 4, ~std::uint64_t{0}}) {
    auto reading = both.read_at(offset, bytes);
    EXPECT_EQ(co_await test::code_of(std::move(reading)), errc::out_of_range) << offset;
    auto writing = both.write_at(offset, bytes);
    EXPECT_EQ(co_await test::code_of(std::move(writing)), errc::out_of_range) << offset;
  }
}

TASK_TEST(file, refuses_what_it_was_not_opened_for) {
  const test::temporary_directory place;
  static_cast<void>(co_await file::open(place / "data", for_both));
  file reader = co_await file::open(place / "data");
  const std::array<std::byte, 8> bytes{};
  auto writing = reader.write_at(3, bytes);
  const auto written = co_await as_result(std::move(writing));
  EXPECT_EQ(written.error().code(), std::errc::bad_file_descriptor);
  EXPECT_NE(std::string(written.error().what()).find("write 8 bytes at 3 of "), std::string::npos);
  EXPECT_FALSE(written.error().posted());
}

// A limit on the size of files, while it lives. What goes beyond it is written up to it, and fails the next time.
class file_size_limit : private test::immovable {
 public:
  explicit file_size_limit(rlim_t bytes) : before_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_signal_);
  }

 private:
  rlimit before_{};
  void (*before_signal_)(int);
};

TASK_TEST(file, a_write_that_stops_half_way_says_that_a_part_was_written) {
  const test::temporary_directory place;
  file both = co_await file::open(place / "limited", for_both);
  const std::vector<std::byte> bytes = filled(10'000, 4);
  const file_size_limit limit(6'000);
  auto writing = both.write_at(0, bytes);
  const auto written = co_await as_result(std::move(writing));
  EXPECT_EQ(written.error().code(), std::errc::file_too_large);
  EXPECT_TRUE(written.error().posted());
  EXPECT_EQ(co_await both.size(), 6'000U);
}

TEST(file, a_failing_disk_is_told_and_the_next_call_goes_on) {
  using test::system_call;
  constexpr test::system_call_set transfers = system_call::preadv | system_call::pwritev | system_call::fdatasync |
                                              system_call::read_in_ring | system_call::write_in_ring |
                                              system_call::sync_in_ring;
  const test::temporary_directory place;
  test::failing_system_calls calls;
  const auto fail_once = [&] { calls.fail({{.of = transfers, .number = EIO, .times = 1}}); };
  const auto root = [&]() -> task<> {
    file both = co_await file::open(place / "data", for_both);
    std::array<std::byte, 8> bytes{};
    fail_once();
    auto writing = both.write_at(0, bytes);
    EXPECT_EQ(co_await test::code_of(std::move(writing)), std::errc::io_error);
    fail_once();
    auto syncing = both.sync();
    EXPECT_EQ(co_await test::code_of(std::move(syncing)), std::errc::io_error);
    EXPECT_EQ(co_await both.write_at(0, bytes), 8U);
    co_await both.sync();
    fail_once();
    auto reading = both.read_at(0, bytes);
    EXPECT_EQ(co_await test::code_of(std::move(reading)), std::errc::io_error);
    EXPECT_EQ(co_await both.read_at(0, bytes), 8U);
  };
  executor({.system_calls = &calls}).run(root());
}

TEST(file, no_call_that_may_block_is_made_on_the_executor) {
  using test::system_call;
  const test::temporary_directory place;
  test::failing_system_calls calls{{.of = system_call::open | system_call::preadv | system_call::pwritev |
                                          system_call::fdatasync | system_call::lseek,
                                    .on = std::this_thread::get_id()}};
  const auto root = [&]() -> task<> {
    file both = co_await file::open(place / "data", for_both);
    std::array<std::byte, 8> bytes{};
    co_await both.write_at(0, bytes);
    co_await both.sync();
    co_await both.read_at(0, bytes);
    static_cast<void>(co_await both.size());
  };
  executor({.system_calls = &calls}).run(root());
  EXPECT_EQ(calls.made(), 0U);
}

TASK_TEST(file, a_stop_before_it_begins_withdraws_it) {
  const test::temporary_directory place;
  file both = co_await file::open(place / "data", for_both);
  const std::array<std::byte, 8> bytes{};
  std::error_code seen;
  const auto write = [&]() -> task<> {
    auto writing = both.write_at(0, bytes);
    const auto written = co_await as_result(std::move(writing));
    if (!written) seen = written.error().code();
  };
  co_await test::run_for_turns(0, write());
  EXPECT_EQ(seen, errc::canceled);
  EXPECT_EQ(co_await both.size(), 0U);
}

TEST(file, a_task_that_goes_while_the_kernel_has_its_memory_ends_the_program) {
  if (executor().driver() != "io_uring") GTEST_SKIP() << "without io_uring a worker has it: see the tests of offload";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child would have no worker to open the file
  const test::temporary_directory place;
  const auto root = [&]() -> task<> {
    file both = co_await file::open(place / "data", for_both);
    std::array<std::byte, 8> bytes{};
    const auto read = [&]() -> task<> { static_cast<void>(co_await both.read_at(0, bytes)); };
    const sim::loose_task reading = test::start_loosely(read());
    co_await yield();  // it has begun, in this turn
  };
  EXPECT_DEATH(test::run(root()), "a read of a file was destroyed in progress");
}

}  // namespace
}  // namespace weft

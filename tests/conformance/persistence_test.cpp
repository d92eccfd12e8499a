// SPDX-License-Identifier: Apache-2.0
// Persistent flushes: what was written to a region over a file is on the storage of that file.
#include <weft/mr/system/mapping.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fstream>

#include "kit/held_workers.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t page = 4096;
constexpr mr::usage durable = mr::usage::write_dst | mr::usage::read_src | mr::usage::flush_persistent;

/// A file on a disk, in the directory of the build.
class disk_file : private immovable {
 public:
  explicit disk_file(std::size_t bytes) {
    fd_ = ::mkstemp(path_.data());
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("cannot make " + path_);
  }
  ~disk_file() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  [[nodiscard]] mr::backing_file file() const noexcept { return {.descriptor = fd_}; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_ = "weft-persistence-XXXXXX";
  int fd_ = -1;
};

mr::mapping mapped(const disk_file& of, std::size_t bytes) {
  return mr::mapping::of_file(of.file(), bytes, system_calls::kernel());
}

/// How much of a mapping has not reached its file, by the kernel's account: proc_pid_smaps(5).
std::size_t unwritten_kib(const std::string& path) {
  std::ifstream all("/proc/self/smaps");
  std::size_t kib = 0;
  bool is_it = false;
  for (std::string line; std::getline(all, line);) {
    const std::string word = line.substr(0, line.find(' '));
    if (!word.ends_with(':')) is_it = line.ends_with(path);
    if (is_it && (word == "Shared_Dirty:" || word == "Private_Dirty:")) kib += std::stoul(line.substr(word.size()));
  }
  return kib;
}

class persistence : public peers {
 protected:
  void SetUp() override {
    struct statfs here {};
    constexpr auto in_memory = 0x01021994;  // TMPFS_MAGIC of statfs(2)
    if (::statfs(".", &here) == 0 && here.f_type == in_memory) GTEST_SKIP() << "the build is in memory, not on a disk";
  }
  static net::connection_options persistent() { return options({.persistent_flush = true}); }

  [[nodiscard]] task<mr::region> region_over(const disk_file& file, std::size_t bytes, mr::usage uses = durable) {
    co_return co_await device().domain().register_memory(mapped(file, bytes), {.usage = uses});
  }
  [[nodiscard]] task<> write(net::connection& by, const mr::remote_slice& where, unsigned value) {
    auto source = co_await filled(pool(), static_cast<std::size_t>(where.size()), value);
    co_await by.write(source, where);
  }
};
WEFT_ON_EVERY_TRANSPORT(persistence);

/// With both ends of a connection that flushes persistently, and a file of two pages.
#define TEST_P_PERSISTENCE(name)                                                                               \
  TEST_P_SCRIPT(persistence, name, WEFT_ENDS_AND_TASKS, if (!opens_regions()) GTEST_SKIP() << no_open_regions; \
                between_busy_peers(WEFT_SCRIPT, persistent(), persistent()))

TEST_P_PERSISTENCE(of_what_was_written_is_there_once_the_flush_has_ended) {
  EXPECT_TRUE(client.capabilities().persistent_flush);
  const disk_file file(2 * page);
  mr::region there = co_await region_over(file, 2 * page);
  for (unsigned value = 1; value != 4; ++value) {
    co_await write(client, there.remote(), value);
    co_await client.flush(there.remote(), net::flush_type::persistent);
    EXPECT_EQ(unwritten_kib(file.path()), 0u);
    EXPECT_TRUE(holds(there.bytes(), value));
  }
  auto odd = there.remote().slice(page - 3, 10);
  co_await write(client, odd, 7);
  co_await client.flush(odd);
  EXPECT_NE(unwritten_kib(file.path()), 0u);
  co_await client.flush(odd, net::flush_type::persistent);
  EXPECT_EQ(unwritten_kib(file.path()), 0u);
}

TEST_P_PERSISTENCE(comes_after_the_operations_before_it_and_before_those_behind_it) {
  const disk_file file(2 * page);
  mr::region there = co_await region_over(file, 2 * page);
  auto source = co_await filled(pool(), 2 * page, 5);
  auto back = co_await zeroed(pool(), 2 * page);
  std::array all{client.write(source, there.remote()), client.flush(there.remote(), net::flush_type::persistent),
                 client.read(back, there.remote())};
  co_await client.batch(all);
  EXPECT_EQ(unwritten_kib(file.path()), 0u);
  EXPECT_TRUE(holds(back.bytes(), 5));
}

TEST_P_PERSISTENCE(of_both_directions_at_once) {
  const disk_file ours(page);
  const disk_file theirs(page);
  mr::region here = co_await region_over(ours, page);
  mr::region there = co_await region_over(theirs, page);
  const auto keep = [&](net::connection& by, const mr::region& where) -> task<> {
    for (unsigned value = 0; value != 8; ++value) {
      co_await write(by, where.remote(), value);
      co_await by.flush(where.remote(), net::flush_type::persistent);
    }
  };
  co_await when_all(keep(client, there), keep(server, here));
  EXPECT_EQ(unwritten_kib(ours.path()) + unwritten_kib(theirs.path()), 0u);
}

TEST_P(persistence, needs_the_option_at_both_ends) {
  if (!opens_regions()) GTEST_SKIP() << no_open_regions;
  const auto script = [&](net::connection& client, net::connection& server) -> task<> {
    EXPECT_FALSE(client.capabilities().persistent_flush);
    const disk_file file(page);
    mr::region there = co_await region_over(file, page, durable | mr::usage::bind_window);
    const auto failure = co_await failure_of(client.flush(there.remote(), net::flush_type::persistent));
    EXPECT_TRUE(failed_with(failure, errc::not_supported, "persistent_flush"));
    EXPECT_EQ(co_await code_of(server.expose(there.slice(), durable)), errc::not_supported);
    co_await write(client, there.remote(), 1);  // the connection goes on
    co_await client.flush(there.remote());
    EXPECT_TRUE(holds(there.bytes(), 1));
  };
  between_peers(script, persistent(), options());
  between_peers(script, options(), persistent());
}

TEST_P_PERSISTENCE(needs_memory_that_is_open_for_it) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page, open_wide);
  const auto failure = co_await failure_of(client.flush(there.remote(), net::flush_type::persistent));
  EXPECT_TRUE(failed_with(failure, errc::access_denied, "persistent flushes"));
  EXPECT_EQ(co_await code_of(client.flush(there.remote().slice(0, 0), net::flush_type::persistent)),
            errc::access_denied);
  mr::region only_for_it = co_await region_over(file, page, mr::usage::flush_persistent);
  co_await client.flush(only_for_it.remote(), net::flush_type::persistent);
  EXPECT_EQ(co_await code_of(client.flush(only_for_it.remote())), errc::access_denied);
  EXPECT_EQ(co_await code_of(client.flush(only_for_it.remote().slice(0, 0), net::flush_type::persistent)),
            errc::invalid_argument);
  if (has_windows()) {
    auto buffer = co_await pool().allocate(page);
    EXPECT_EQ(co_await code_of(server.expose(std::move(buffer), durable)), errc::access_denied);
  }
}

TEST_P_PERSISTENCE(is_refused_to_whoever_lies_about_the_memory_and_the_connection_goes_on) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  const mr::remote_place place = there.remote().places().back();
  EXPECT_EQ(place.fabric, mr::place_behind_owner);
  const auto forged = [&](std::uint64_t key, std::uint64_t address, std::uint64_t bytes) {
    const mr::remote_place lie{.fabric = mr::place_behind_owner, .address = address, .key = key};
    return mr::remote_region({&lie, 1}, bytes, durable);
  };
  const auto attempt_of = [&](const mr::remote_region& lie) {
    return code_of(client.flush(lie, net::flush_type::persistent));
  };
  EXPECT_EQ(co_await attempt_of(forged(place.key + 1, 0, page)), errc::remote_access);
  EXPECT_EQ(co_await attempt_of(forged(place.key, 1, page)), errc::remote_access);
  EXPECT_EQ(co_await attempt_of(forged(place.key, 0, page + 1)), errc::remote_access);
  EXPECT_EQ(co_await attempt_of(forged(place.key, 0xFFFF'FFFF'FFFF'0000, page)), errc::remote_access);
  const mr::remote_region was = there.remote();
  co_await client.flush(was, net::flush_type::persistent);
  co_await there.release();
  EXPECT_EQ(co_await attempt_of(was), errc::remote_access);
}

// The memory is not mapped any more, which the kernel says as it says that a disk is broken.
TEST_P_PERSISTENCE(that_the_storage_refuses_is_an_error_of_the_system_and_the_connection_goes_on) {
  const disk_file file(page);
  std::optional<mr::mapping> memory(mapped(file, page));
  mr::region there = co_await device().domain().register_memory(std::span(*memory), {.usage = durable});
  co_await client.flush(there.remote(), net::flush_type::persistent);
  memory.reset();
  const auto failure = co_await failure_of(client.flush(there.remote(), net::flush_type::persistent));
  EXPECT_TRUE(failed_with(failure, std::errc::io_error, "storage"));
  auto word = co_await filled(pool(), 10, 1);
  co_await client.send(word);
  static_cast<void>(co_await server.recv_or_throw());
  co_await there.release();
}

TEST_P_PERSISTENCE(of_what_was_lent_ends_with_the_loan) {
  if (!has_windows()) co_return;
  const disk_file file(2 * page);
  mr::region whole = co_await region_over(file, 2 * page, durable | mr::usage::bind_window);
  net::exposure lent = co_await server.expose(whole.slice(page, page), durable);
  co_await write(client, lent.remote(), 1);
  co_await client.flush(lent.remote(), net::flush_type::persistent);
  EXPECT_EQ(unwritten_kib(file.path()), 0u);
  connected others = co_await connect_pair(persistent(), persistent());
  EXPECT_EQ(co_await code_of(others.client.flush(lent.remote(), net::flush_type::persistent)), errc::remote_access);
  const mr::remote_region was = lent.remote();
  static_cast<void>(co_await lent.revoke());
  EXPECT_EQ(co_await code_of(client.flush(was, net::flush_type::persistent)), errc::remote_access);
  co_await whole.release();
}

class persistence_with_held_workers : public persistence {
 protected:
  void SetUp() override {
    persistence::SetUp();
    if (!IsSkipped()) open_executor({.workers = &workers_});
  }
  held_workers workers_;
};
WEFT_ON_EVERY_TRANSPORT(persistence_with_held_workers);

#define TEST_P_HELD(name)                                                                \
  TEST_P_SCRIPT(persistence_with_held_workers, name, WEFT_ENDS_AND_TASKS,                \
                if (!opens_regions() || !has_windows()) GTEST_SKIP() << no_open_regions; \
                between_busy_peers(WEFT_SCRIPT, persistent(), persistent()))

TEST_P_HELD(is_not_said_of_memory_that_was_taken_back_meanwhile) {
  const disk_file file(page);
  mr::region whole = co_await region_over(file, page, durable | mr::usage::bind_window);
  net::exposure lent = co_await server.expose(whole.slice(), durable);
  workers_.hold_next_until_waited_for();
  attempt flush(tasks, client.flush(lent.remote(), net::flush_type::persistent));
  while (!workers_.hold_it()) co_await yield();
  static_cast<void>(co_await lent.revoke());
  EXPECT_FALSE(flush.ended());
  workers_.let_go();
  co_await flush.end();
  EXPECT_EQ(flush.code(), errc::remote_access);
}

TEST_P_HELD(that_is_stopped_ends_once_the_peer_has_answered) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  workers_.hold_next_until_waited_for();
  attempt flush(tasks, client.flush(there.remote(), net::flush_type::persistent));
  while (!workers_.hold_it()) co_await yield();
  flush.stop();
  auto word = co_await filled(pool(), 10, 1);
  attempt behind(tasks, client.send(word));
  co_await settle();
  EXPECT_FALSE(behind.ended());  // what is behind it waits, as for any operation that the peer carries out
  workers_.let_go();
  co_await flush.end();
  EXPECT_EQ(flush.code(), errc::canceled);
  static_cast<void>(co_await server.recv_or_throw());
  co_await behind.end();
}

TEST_P_TASK(persistence, is_promised_of_no_memory_that_has_none) {
  const auto refuse = [&](std::span<std::byte> memory, std::string_view words) -> task<> {
    const auto failure = co_await failure_of(device().domain().register_memory(memory, {.usage = durable}));
    EXPECT_TRUE(failed_with(failure, errc::not_supported, words));
    EXPECT_TRUE(failed_with(failure, errc::not_supported, "flush_persistent"));
  };
  std::vector<std::byte> plain(page);
  co_await refuse(plain, "not mapped from a file");
  auto in_memory = mr::mapping::in_memory_file(page, false, -1, system_calls::kernel());
  co_await refuse(in_memory, "memfd");
  const disk_file file(page);
  void* const own = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.file().descriptor, 0);
  co_await refuse({static_cast<std::byte*>(own), page}, "private mapping");
  ::munmap(own, page);
  std::optional<disk_file> removed(page);
  mr::mapping nameless = mapped(*removed, page);
  ::unlink(removed->path().c_str());
  co_await refuse(nameless, "can be found");
}

TEST_P_TASK(persistence, of_a_region_lasts_as_long_as_its_registration) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  EXPECT_EQ(co_await code_of(there.reregister({.usage = durable})), errc::invalid_argument);
  mr::region plain = co_await region_over(file, page, open_wide);
  EXPECT_EQ(co_await code_of(plain.reregister({.usage = durable})), errc::invalid_argument);
}

}  // namespace
}  // namespace weft::test

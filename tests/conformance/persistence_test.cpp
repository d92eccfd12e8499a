// SPDX-License-Identifier: Apache-2.0
// Persistent flushes: what was written to a region over a file is on the storage of that file.
#include <weft/mr/porting/refresh.hpp>
#include <weft/mr/system/persistence.hpp>

#include "../sim/loose_task.hpp"
#include "kit/disk_file.hpp"
#include "kit/held_workers.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t page = 4096;
constexpr mr::usage durable = mr::usage::write_dst | mr::usage::read_src | mr::usage::flush_persistent;

class persistence : public peers {
 protected:
  void SetUp() override {
    const mr::domain& home = device().domain();
    if (!mr::includes(home.capabilities().usages, mr::usage::flush_persistent) || home.pins())
      GTEST_SKIP() << "this device writes to pinned pages";
    if (!disk_file::is_possible()) GTEST_SKIP() << "the directory of the build is not on a disk";
  }
  static net::connection_options persistent() { return options({.persistent_flush = true}); }

  [[nodiscard]] task<mr::region> region_over(const disk_file& file, std::size_t bytes, mr::usage uses = durable) {
    co_return co_await device().domain().register_memory(file.mapped(bytes), {.usage = uses});
  }
  [[nodiscard]] task<> write(net::connection& by, const mr::remote_slice& where, unsigned value) {
    auto source = co_await filled(pool(), static_cast<std::size_t>(where.size()), value);
    co_await by.write(source, where);
  }
};
WEFT_ON_EVERY_TRANSPORT(persistence);

/// With both ends of a connection that flushes persistently, and a file of two pages.
#define TEST_P_PERSISTENCE(suite, name) TEST_P_REGIONS(suite, name, persistent(), persistent())

TEST_P_PERSISTENCE(persistence, of_what_was_written_is_there_once_the_flush_has_ended) {
  EXPECT_TRUE(client.capabilities().persistent_flush);
  const disk_file file(2 * page);
  mr::region there = co_await region_over(file, 2 * page);
  for (unsigned value = 1; value != 4; ++value) {
    co_await write(client, there.remote(), value);
    co_await client.flush(there.remote(), net::flush_type::persistent);
    EXPECT_EQ(file.unwritten_kib(), 0u);
    EXPECT_TRUE(holds(there.bytes(), value));
  }
  auto odd = there.remote().slice(page - 3, 10);
  co_await write(client, odd, 7);
  co_await client.flush(odd);
  EXPECT_NE(file.unwritten_kib(), 0u);
  co_await client.flush(odd, net::flush_type::persistent);
  EXPECT_EQ(file.unwritten_kib(), 0u);
}

TEST_P_PERSISTENCE(persistence, of_both_directions_at_once) {
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
  EXPECT_EQ(ours.unwritten_kib() + theirs.unwritten_kib(), 0u);
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

TEST_P_PERSISTENCE(persistence, needs_memory_that_is_open_for_it) {
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

TEST_P_PERSISTENCE(persistence, is_refused_to_whoever_lies_about_the_memory_and_the_connection_goes_on) {
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
TEST_P_PERSISTENCE(persistence, that_the_storage_refuses_is_an_error_of_the_system_and_the_connection_goes_on) {
  const disk_file file(page);
  std::optional<mr::mapping> memory(file.mapped(page));
  mr::region there = co_await device().domain().register_memory(std::span(*memory), {.usage = durable});
  co_await client.flush(there.remote(), net::flush_type::persistent);
  memory.reset();
  const auto failure = co_await failure_of(client.flush(there.remote(), net::flush_type::persistent));
  EXPECT_TRUE(failed_with(failure, std::errc::io_error, "storage"));
  co_await expect_delivery(client, server);
  co_await there.release();
}

// The system tells of lost writes once, and no longer knows which they were.
TEST_P_PERSISTENCE(persistence, is_promised_no_more_once_the_storage_has_lost_a_write) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  static bool is_broken;
  is_broken = true;
  const auto fail_once = [](std::span<std::byte>) noexcept { return std::exchange(is_broken, false) ? -EIO : 0; };
  there.slice().record()->region->storage = std::make_shared<mr::detail::storage>(fail_once);
  EXPECT_EQ(co_await code_of(client.flush(there.remote(), net::flush_type::persistent)), std::errc::io_error);
  EXPECT_EQ(co_await code_of(client.flush(there.remote(), net::flush_type::persistent)), std::errc::io_error);
}

TEST_P_PERSISTENCE(persistence, of_what_was_lent_ends_with_the_loan) {
  if (!has_windows()) co_return;
  const disk_file file(2 * page);
  mr::region whole = co_await region_over(file, 2 * page, durable | mr::usage::bind_window);
  co_await client.flush(whole.remote(), net::flush_type::persistent);  // a transport may have tried the first page
  EXPECT_EQ(co_await code_of(server.expose(whole.slice(), mr::usage::flush_persistent)), errc::not_supported);
  net::exposure lent = co_await server.expose(whole.slice(page, page), durable);
  co_await write(client, lent.remote(), 1);
  co_await client.flush(lent.remote(), net::flush_type::persistent);
  EXPECT_EQ(file.unwritten_kib(), 0u);
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

#define TEST_P_HELD(suite, name) \
  TEST_P_WHERE(suite, name, opens_regions() && has_windows(), no_open_regions, persistent(), persistent())

TEST_P_HELD(persistence_with_held_workers, comes_after_the_operations_before_it_and_before_those_behind_it) {
  const disk_file file(2 * page);
  mr::region there = co_await region_over(file, 2 * page);
  const mr::remote_region remote = there.remote();
  connected others = co_await connect_pair();
  auto before = co_await filled(pool(), 2 * page, 5);
  auto behind = co_await filled(pool(), page, 6);
  auto back = co_await zeroed(pool(), 2 * page);
  workers_.hold_next_until_waited_for();
  const auto post_all = [&]() -> task<> {
    std::array all{client.write(before, remote), client.flush(remote, net::flush_type::persistent),
                   client.write(behind, remote.slice(page, page)), client.read(back, remote)};
    co_await client.batch(all);
  };
  attempt batch(tasks, post_all());
  while (!workers_.hold_it()) co_await yield();
  co_await settle();
  co_await expect_delivery(others.client, others.server);  // of what was posted before, all that was to come has come
  EXPECT_TRUE(holds(there.bytes(), 5));
  EXPECT_FALSE(batch.ended());
  workers_.let_go();
  EXPECT_TRUE(co_await succeeds(batch));
  EXPECT_LE(file.unwritten_kib(), page / 1024);  // of the write behind it alone
  EXPECT_TRUE(holds(back.bytes().first(page), 5));
  EXPECT_TRUE(holds(back.bytes().last(page), 6));
}

TEST_P_HELD(persistence_with_held_workers, is_not_said_of_memory_that_was_taken_back_meanwhile) {
  const disk_file file(page);
  mr::region whole = co_await region_over(file, page, durable | mr::usage::bind_window);
  net::exposure lent = co_await server.expose(whole.slice(), durable);
  workers_.hold_next_until_waited_for();
  attempt flush(tasks, client.flush(lent.remote(), net::flush_type::persistent));
  while (!workers_.hold_it()) co_await yield();
  static_cast<void>(co_await lent.revoke());
  EXPECT_FALSE(flush.ended());
  workers_.let_go();
  EXPECT_EQ(co_await code_of(flush), errc::remote_access);
}

TEST_P_HELD(persistence_with_held_workers, that_is_stopped_ends_at_once_and_those_behind_it_wait_for_the_answer) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  workers_.hold_next_until_waited_for();
  attempt flush(tasks, client.flush(there.remote(), net::flush_type::persistent));
  while (!workers_.hold_it()) co_await yield();
  auto word = co_await filled(pool(), 10, 1);
  attempt behind(tasks, client.send(word));
  EXPECT_EQ(co_await code_once_stopped(flush), errc::canceled);
  co_await settle();
  EXPECT_FALSE(behind.ended());
  workers_.let_go();
  static_cast<void>(co_await server.recv_or_throw());
  co_await behind.end();
}

sim::loose_task flush_alone(net::transfer flush) { co_await std::move(flush); }

// The worker looks at memory that is neither registered nor mapped any more, for a connection that is gone.
TEST_P_HELD(persistence_with_held_workers, leaves_nothing_behind_when_its_task_its_connection_and_its_memory_go) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  workers_.hold_next_until_waited_for();
  {
    const sim::loose_task flush = flush_alone(client.flush(there.remote(), net::flush_type::persistent));
    flush.start(home());
    while (!workers_.hold_it()) co_await yield();
  }
  client.abort();
  server.abort();
  co_await there.release();
  EXPECT_TRUE(workers_.hold_it());
  workers_.let_go();
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
  void* const own = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor(), 0);
  co_await refuse({static_cast<std::byte*>(own), page}, "private mapping");
  ::munmap(own, page);
  std::optional<disk_file> removed(page);
  mr::mapping nameless = removed->mapped(page);
  ::unlink(removed->path().c_str());
  co_await refuse(nameless, "can be found");
}

TEST_P_TASK(persistence, is_not_refreshed_into_memory_that_has_none) {
  const disk_file file(page);
  mr::region there = co_await region_over(file, page);
  co_await mr::porting::refresh(there);
  constexpr int in_its_place = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  EXPECT_EQ(::mmap(there.data(), page, PROT_READ | PROT_WRITE, in_its_place, -1, 0), there.data());
  const auto failure = co_await failure_of(mr::porting::refresh(there));
  EXPECT_TRUE(failed_with(failure, errc::not_supported, "not mapped from a file"));
}

}  // namespace
}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// Registered memory that peers know by other addresses than its own, or that changes while it is registered.
#include <weft/mr/cache.hpp>
#include <weft/mr/porting/porting.hpp>

#include "kit/address_space.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr mr::usage local_uses = mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src;
constexpr mr::usage all_uses = local_uses | mr::usage::read_src | mr::usage::write_dst;
constexpr std::size_t bytes = 8192;

// As an iova demands it: at the start of a page.
struct alignas(4096) pages : std::array<std::byte, bytes> {};

class registrations : public peers {
 protected:
  [[nodiscard]] bool has_iova() { return device().domain().capabilities().iova; }

  task<mr::region> register_pages(mr::registration_options options) {
    co_return co_await device().domain().register_memory(std::make_unique<pages>(), options);
  }

  /// Peers write to it and read from it, and so do we, from `offset` on.
  task<> serves_both_sides(net::connection& peer, mr::region& region, std::size_t offset) {
    const std::size_t length = bytes - offset;
    auto source = co_await filled(pool(), length, 1);
    co_await write_and_flush(peer, source, region.remote().slice(offset, length));
    EXPECT_TRUE(holds(region.bytes().subspan(offset), 1));

    auto other = co_await register_pages({.usage = all_uses});
    co_await peer.write(region.slice(offset, length), other.remote().slice(offset, length));
    co_await peer.flush(other.remote());
    EXPECT_TRUE(holds(other.bytes().subspan(offset), 1));
    fill(other.bytes(), 2);
    co_await peer.read(region.slice(), other.remote());
    EXPECT_TRUE(holds(region.bytes(), 2));
  }
};
WEFT_ON_EVERY_TRANSPORT(registrations);

TEST_P_WHERE(registrations, at_an_iova_serve_peers_there_and_us_at_their_own_address, has_iova(),
             "this device does not heed an iova") {
  constexpr std::uint64_t iova = 0x7000'0000'0000;
  auto region = co_await register_pages({.usage = all_uses, .iova = iova});
  EXPECT_EQ(region.remote().address(), iova);
  co_await serves_both_sides(client, region, 0);
  co_await serves_both_sides(client, region, 4100);
}

TEST_P_WHERE(registrations, that_start_at_zero_serve_peers_there_and_us_at_their_own_address, has_iova(),
             "this device does not heed an iova") {
  auto region = co_await register_pages({.usage = all_uses, .zero_based = true});
  EXPECT_EQ(region.remote().address(), 0u);
  co_await serves_both_sides(client, region, 0);
  co_await serves_both_sides(client, region, 1);
}

TEST_P_REGIONS(registrations, made_disabled_serve_both_sides_once_they_are_enabled) {
  auto region = co_await register_pages({.usage = all_uses, .disabled = true});
  co_await mr::porting::enable(region);
  co_await serves_both_sides(client, region, 0);
  if (!has_iova()) co_return;
  auto elsewhere = co_await register_pages({.usage = all_uses, .iova = 0x7000'0000'0000, .disabled = true});
  co_await mr::porting::enable(elsewhere);
  EXPECT_EQ(elsewhere.remote().address(), 0x7000'0000'0000u);
  co_await serves_both_sides(client, elsewhere, 4100);
}

TEST_P_WHERE(registrations, at_an_iova_can_bear_windows, has_windows() && device().domain().capabilities().iova,
             "this device has no iova, or no memory windows") {
  auto region = co_await register_pages({.usage = all_uses | mr::usage::bind_window, .iova = 0x7000'0000'0000});
  const auto part = co_await server.expose(region.slice(100, 50), mr::usage::write_dst | mr::usage::read_src);
  auto source = co_await filled(pool(), 50, 1);
  co_await write_and_flush(client, source, part.remote());
  EXPECT_TRUE(holds(region.bytes().subspan(100, 50), 1));
  EXPECT_TRUE(is_zero(region.bytes().first(100)));
}

TEST_P_WHERE(registrations, of_several_ranges_serve_peers_as_one, device().domain().capabilities().max_ranges >= 3,
             "this device registers single ranges") {
  // Large enough for a write to be received where it goes, and cut where it hurts.
  std::vector<std::byte> memory(std::size_t{1} << 20);
  const std::span all(memory);
  const std::span<std::byte> ranges[] = {all.subspan(700'001, 300'000), all.subspan(0, 13), all.subspan(50, 699'000)};
  const mr::registration_options options{.usage = all_uses};
  auto region = co_await device().domain().register_memory(ranges, options);
  EXPECT_EQ(region.size(), 999'013u);
  auto source = co_await register_zeros(region.size(), options);
  fill(source.bytes(), 3);
  co_await client.write(source.slice(), region.remote());
  co_await client.flush(region.remote());
  std::size_t at = 0;
  for (const auto& range : ranges) {
    EXPECT_TRUE(std::ranges::equal(range, source.bytes().subspan(at, range.size()))) << at;
    at += range.size();
  }
  EXPECT_TRUE(is_zero(all.subspan(13, 37)));

  auto sink = co_await register_zeros(region.size(), options);
  co_await client.read(sink.slice(), region.remote());
  EXPECT_TRUE(std::ranges::equal(sink.bytes(), source.bytes()));
  co_await region.release();
}

TEST_P_WHERE(registrations, of_several_ranges_are_refused_where_the_device_takes_one,
             device().domain().capabilities().max_ranges <= 1, "this device registers several") {
  const auto memory = std::make_unique<pages>();
  const std::span<std::byte> all(*memory);
  const std::span<std::byte> ranges[] = {all.first(4096), all.last(4000)};
  const auto make = [&]() -> task<> {
    static_cast<void>(co_await device().domain().register_memory(ranges, {.usage = all_uses}));
  };
  EXPECT_EQ(co_await code_of(make()), errc::not_supported);
}

TEST_P_REGIONS(registrations, of_ranges_that_adjoin_are_one_everywhere) {
  const auto memory = std::make_unique<pages>();
  const std::span<std::byte> all(*memory);
  const std::span<std::byte> ranges[] = {all.first(100), all.subspan(100, 4000), all.subspan(4100)};
  const mr::registration_options options{.usage = all_uses};
  auto region = co_await device().domain().register_memory(ranges, options);
  EXPECT_EQ(region.bytes().size(), bytes);
  co_await serves_both_sides(client, region, 50);
  co_await region.release();
}

TEST_P_REGIONS(registrations, that_count_tell_a_coroutine_of_the_writes_of_peers_once_they_are_in_place) {
  auto region = co_await register_pages({.usage = all_uses, .disabled = true});
  const mr::porting::write_counter counter;
  mr::porting::bind(region, counter);
  co_await mr::porting::enable(region);
  bool last_was_there = false;
  const auto watch = [&]() -> task<> {
    EXPECT_GE(co_await mr::porting::remote_writes(region, 3), 3u);
    last_was_there = holds(region.bytes().first(3000), 1);
  };
  const auto body = [&](scope& all) -> task<> {
    all.spawn(watch());
    auto source = co_await filled(pool(), 3000, 1);
    for (std::size_t i = 0; i < 3; ++i) co_await client.write(source, region.remote().slice(0, 3000));
  };
  co_await with_scope(on_failure::stop_siblings, body);
  EXPECT_TRUE(last_was_there);
  EXPECT_EQ(counter.value(), 3u);
  co_await mr::porting::remote_writes(region, 3);  // there already
  co_await region.release();
}

TEST_P_WHERE(registrations, that_are_disabled_are_closed_to_peers, device().domain().capabilities().gates,
             "regions of this device have no key before that") {
  auto region = co_await register_pages({.usage = all_uses, .disabled = true});
  auto source = co_await filled(pool(), 10, 1);
  const auto write = [&]() -> task<> { co_await write_and_flush(client, source, region.remote().slice(0, 10)); };
  EXPECT_EQ(co_await code_of(write()), errc::remote_access);
  EXPECT_TRUE(is_zero(region.bytes()));
}

TEST_P_REGIONS(registrations, are_refreshed_after_other_pages_were_mapped_there) {
  const address_space place(bytes);
  auto region = co_await device().domain().register_memory(place.bytes(), {.usage = all_uses});
  const auto map_others = [](std::span<std::byte> at) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    EXPECT_EQ(::mmap(at.data(), at.size(), PROT_READ | PROT_WRITE, flags, -1, 0), at.data());
  };
  map_others(place.bytes());
  co_await mr::porting::refresh(region);
  co_await serves_both_sides(client, region, 0);
  const std::array halves{place.bytes().first(bytes / 2), place.bytes().last(bytes / 2)};
  for (const std::span<std::byte> half : halves) map_others(half);
  co_await mr::porting::refresh(region, halves);
  co_await serves_both_sides(client, region, 0);
  co_await region.release();
}

/// Pages of a file in memory, which can be protected and cut off.
class file_pages : private immovable {
 public:
  explicit file_pages(std::size_t length) : file_(::memfd_create("pages", MFD_CLOEXEC)), length_(length) {
    EXPECT_EQ(::ftruncate(file_, static_cast<off_t>(length)), 0);
    place_ = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    EXPECT_NE(place_, MAP_FAILED);
  }
  ~file_pages() {
    ::munmap(place_, length_);
    ::close(file_);
  }
  [[nodiscard]] std::span<std::byte> memory() const { return {static_cast<std::byte*>(place_), length_}; }
  void protect(int rights) const { EXPECT_EQ(::mprotect(place_, length_, rights), 0); }
  void cut_off() const { EXPECT_EQ(::ftruncate(file_, 0), 0); }

 private:
  int file_;
  std::size_t length_;
  void* place_ = nullptr;
};

// Of two pages nobody may touch the second: to the kernel's copies that is as if it were not mapped, and nothing else
// comes there.
TEST_P(registrations, that_are_lazy_serve_what_is_mapped_by_then_and_refuse_the_rest) {
  if (!device().domain().capabilities().lazy) GTEST_SKIP() << "this device registers what is mapped";
  constexpr std::size_t page = bytes / 2;
  const address_space place(bytes);
  ASSERT_EQ(::mprotect(place.bytes().data() + page, page, PROT_NONE), 0);
  const auto refused_by = [&](const char* how, auto access) {
    between_peers([&, how](net::connection& client, net::connection&) -> task<> {
      auto region = co_await device().domain().register_memory(place.bytes(), {.usage = open_wide, .lazy = true});
      const auto remote = region.remote();
      auto source = co_await filled(pool(), page, 1);
      co_await client.write(source, remote.slice(0, page));
      auto sink = co_await pool().allocate(page);
      co_await client.read(sink, remote.slice(0, page));
      EXPECT_TRUE(holds(sink.bytes(), 1));
      EXPECT_EQ(co_await code_of(access(client, remote)), errc::remote_access) << how;
      co_await region.release();
    });
  };
  refused_by("a read across the end", [&](net::connection& client, mr::remote_region remote) -> task<> {
    auto sink = co_await pool().allocate(bytes);
    co_await client.read(sink, remote);
  });
  refused_by("a write behind it", [&](net::connection& client, mr::remote_region remote) -> task<> {
    auto source = co_await filled(pool(), 16, 2);
    co_await client.write(source, remote.slice(page, 16));
    co_await client.flush(remote.slice(0, 16));
  });
}

TEST_P_WHERE(registrations, that_are_lazy_are_for_what_peers_read_and_write, device().domain().capabilities().lazy,
             "this device registers what is mapped") {
  for (const mr::usage other : {mr::usage::send, mr::usage::recv, mr::usage::read_dst, mr::usage::write_src,
                                mr::usage::atomic_dst, mr::usage::bind_window, mr::usage::flush_persistent}) {
    const mr::registration_options options{.usage = mr::usage::read_src | other, .lazy = true};
    EXPECT_EQ(co_await code_of(register_pages(options)), errc::invalid_argument) << to_string(other);
  }
  EXPECT_EQ(co_await code_of(register_pages({.usage = mr::usage::read_src, .lazy = true, .direct = true})),
            errc::invalid_argument);
}

// A number that both ends know without being told.
TEST_P_WHERE(registrations, under_a_requested_key_serve_a_peer_that_knows_it,
             device().domain().capabilities().requested_key, "this device draws all keys") {
  constexpr std::uint64_t known = 0x5eed;
  auto region = co_await register_pages({.usage = all_uses, .zero_based = true, .requested_key = known});
  const mr::remote_slice remote(known, 0, bytes, mr::usage::read_src | mr::usage::write_dst);
  auto source = co_await filled(pool(), bytes, 1);
  co_await write_and_flush(client, source, remote);
  EXPECT_TRUE(holds(region.bytes(), 1));
  EXPECT_EQ(co_await code_of(register_pages({.usage = all_uses, .requested_key = known})), errc::duplicate_key);
  co_await region.release();
}

// An operation keeps its memory registered, also once it was stopped and the lease has gone.
TEST_P_REGIONS(registrations, of_a_cache_serve_operations_of_this_side) {
  mr::cache cache(device().domain(), {.max_regions = 0});
  std::array<std::byte, 1000> from{};
  std::vector<std::byte> to(from.size());
  fill(from, 1);
  auto region = co_await register_pages({.usage = open_wide});
  const auto remote = region.remote().slice(0, from.size());
  {
    const auto source = co_await cache.lease(from, mr::usage::write_src | mr::usage::send);
    co_await client.write(source.slice(), remote);
    co_await client.send(source.slice());
  }
  EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 1));
  {
    const auto sink = co_await cache.lease(to, mr::usage::read_dst);
    co_await client.read(sink.slice(), remote);
  }
  EXPECT_TRUE(holds(to, 1));
  fill(to, 2);
  fill(region.bytes(), 3);
  std::optional<mr::lease> last = co_await cache.lease(to, mr::usage::read_dst);
  attempt reading(tasks, client.read(last->slice(), remote));
  co_await yield();
  last.reset();
  const auto how = co_await code_once_stopped(reading);
  EXPECT_TRUE(holds(to, 3) || (how && holds(to, 2)));
}

TEST_P_WHERE(registrations, of_everything_serve_any_memory_of_this_side, device().domain().capabilities().everything,
             "this device takes memory that is registered") {
  auto all = co_await device().domain().register_memory(mr::everything(), {.usage = local_uses});
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(all.remote()); }), errc::access_denied);
  std::array<std::byte, 1000> from{};
  std::vector<std::byte> to(from.size());
  fill(from, 1);
  co_await client.send(all.slice(from));
  EXPECT_TRUE(co_await server.recv_into(all.slice(to)));
  EXPECT_TRUE(holds(to, 1));
  if (!opens_regions()) co_return co_await all.release();

  auto other = co_await register_pages({.usage = all_uses});
  fill(from, 2);
  co_await client.write(all.slice(from), other.remote().slice(10, from.size()));
  co_await client.read(all.slice(to), other.remote().slice(10, from.size()));
  EXPECT_TRUE(holds(to, 2));
  co_await all.release();
}

TEST_P_BETWEEN(registrations, of_everything_are_for_this_side_alone) {
  const auto refusal = [&](mr::registration_options options) {
    return code_of(device().domain().register_memory(mr::everything(), options));
  };
  if (!device().domain().capabilities().everything) {
    EXPECT_EQ(co_await refusal({.usage = mr::usage::send}), errc::not_supported);
    co_return;
  }
  for (const mr::usage open : {mr::usage::read_src, mr::usage::write_dst, mr::usage::bind_window}) {
    if (!mr::includes(device().domain().capabilities().usages, open)) continue;
    EXPECT_EQ(co_await refusal({.usage = local_uses | open}), errc::invalid_argument) << to_string(open);
  }
  EXPECT_EQ(co_await refusal({.usage = local_uses, .huge_pages = true}), errc::invalid_argument);
}

TEST_P_TASK_WHERE(registrations, of_memory_that_cannot_be_used_so_are_refused, opens_regions(), no_open_regions) {
  const file_pages pages(bytes);
  const auto use = [&](mr::usage uses) -> task<> {
    mr::region made = co_await device().domain().register_memory(pages.memory(), {.usage = uses});
    co_await made.release();
  };
  const std::error_code bad_address(EFAULT, std::system_category());
  EXPECT_EQ(co_await code_of(use(all_uses)), std::error_code());
  pages.protect(PROT_READ);
  EXPECT_EQ(co_await code_of(use(mr::usage::write_dst)), bad_address);
  EXPECT_EQ(co_await code_of(use(mr::usage::recv)), bad_address);
  pages.protect(PROT_NONE);
  EXPECT_EQ(co_await code_of(use(mr::usage::read_src)), bad_address);
  pages.protect(PROT_READ | PROT_WRITE);
  pages.cut_off();
  EXPECT_EQ(co_await code_of(use(mr::usage::read_src)), bad_address);
}

// A device that pins goes on with the pages that it has; one that does not refuses the peer. Neither ends the process.
TEST_P(registrations, survive_the_loss_of_their_file) {
  constexpr std::size_t length = 300'000;
  const auto attempt = [&](const auto& work) {
    between_peers([&](net::connection& client, net::connection&) -> task<> {
      const file_pages pages(length);
      mr::region region = co_await device().domain().register_memory(pages.memory(), {.usage = all_uses});
      pages.cut_off();
      auto local = co_await filled(pool(), length, 1);
      const std::error_code expected = GetParam().pins_pages ? std::error_code() : errc::remote_access;
      EXPECT_EQ(co_await code_of(work(client, local, region.remote())), expected);
      co_await region.release();
    });
  };
  const auto read = [](net::connection& peer, mr::buffer& local, const mr::remote_region& remote) -> task<> {
    co_await peer.read(local, remote);
  };
  const auto write = [](net::connection& peer, mr::buffer& local, const mr::remote_region& remote) -> task<> {
    co_await peer.write(local, remote);
    co_await peer.flush(remote);
  };
  attempt(read);
  attempt(write);
}

TEST_P_BETWEEN(registrations, that_are_received_into_survive_the_loss_of_their_file) {
  const file_pages pages(4096);
  mr::region region = co_await device().domain().register_memory(pages.memory(), {.usage = mr::usage::recv});
  const auto whole = region.slice();
  co_await client.send(co_await filled(pool(), 64, 1));
  EXPECT_TRUE((co_await server.recv_into(whole)).has_value());
  EXPECT_TRUE(holds(pages.memory().first(64), 1));
  pages.cut_off();
  co_await client.send(co_await filled(pool(), 64, 2));
  EXPECT_TRUE(failed_with(co_await failure_of(server.recv_into(whole)), errc::invalid_argument, "has become shorter"));
  EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 2));
  co_await region.release();
}

}  // namespace
}  // namespace weft::test

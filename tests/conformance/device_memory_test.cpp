// SPDX-License-Identifier: Apache-2.0
// Memory that the processor must not touch, at either end of every operation.
#include <weft/mr/cuda/driver.hpp>
#include <weft/mr/porting/porting.hpp>

#include <numeric>
#include <random>

#include "cuda/stand_in_control.hpp"
#include "peers.hpp"
#include "sim/loose_task.hpp"

namespace weft::test {
namespace {

constexpr mr::usage for_all =
    mr::usage::send | mr::usage::write_src | mr::usage::read_dst | mr::usage::write_dst | mr::usage::read_src;
constexpr mr::usage for_peers = mr::usage::write_dst | mr::usage::read_src;
constexpr std::size_t slot = std::size_t{256} << 10;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  fill(made, seed);
  return made;
}

class device_memory : public peers {
 protected:
  void SetUp() override {
    if (GetParam().place != nullptr) GTEST_SKIP() << "a GPU knows nothing of simulated time";
    if (!has_windows()) GTEST_SKIP() << no_windows;  // by which owners let peers into room for copies
    try {
      if (chosen_cuda().empty()) control_.emplace();
      gpu_ = mr::open_cuda({.library = control_ ? stand_in::library() : chosen_cuda().c_str()});
    } catch (const std::exception& why) {
      GTEST_SKIP() << why.what();
    }
  }
  void TearDown() override {
    gpu_.reset();
    peers::TearDown();
  }

  [[nodiscard]] static net::connection_options staged() {
    const auto all = options({.device_memory = true});
    return all;
  }
  template <class Script>
  void between(Script script) {
    between_peers(script, staged(), staged());
  }

  // What a test tells the driver, which a real one does not hear.
  [[nodiscard]] bool has_control() const noexcept { return control_.has_value(); }
  [[nodiscard]] stand_in& control() noexcept { return *control_; }
  static constexpr const char* no_control = "a real driver does not do as it is told";
  [[nodiscard]] const std::shared_ptr<mr::memory_device>& gpu() const noexcept { return gpu_; }

  [[nodiscard]] task<mr::region> on_device(std::size_t bytes, unsigned seed, mr::usage uses = for_all) {
    mr::device_memory memory = gpu_->allocate(bytes);
    put(memory.bytes(), pattern(bytes, seed));
    co_return co_await device().domain().register_memory(std::move(memory), {.usage = uses, .device = gpu_.get()});
  }
  void put(std::span<std::byte> memory, std::span<const std::byte> bytes) const {
    copy(memory.data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::vector<std::byte> get(std::span<const std::byte> memory) const {
    std::vector<std::byte> bytes(memory.size());
    copy(bytes.data(), memory.data(), bytes.size());
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> contents(const mr::region& region) const { return get(region.bytes()); }
  [[nodiscard]] bool has(const mr::region& region, unsigned seed) const { return holds(contents(region), seed); }

 private:
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    const auto stream = gpu_->open_stream();
    stream->copy(to, from, bytes).value();
    static_cast<void>(stream->mark().value());
    stream->synchronize();
  }

  std::optional<stand_in> control_;
  std::shared_ptr<mr::memory_device> gpu_;
};
WEFT_ON_EVERY_TRANSPORT(device_memory);

// Between peers that may both have memory of devices; the second with a driver that does as it is told.
#define TEST_P_DEVICE_MEMORY(suite, name) TEST_P_BETWEEN(suite, name, staged(), staged())
#define TEST_P_CONTROLLED(suite, name) TEST_P_WHERE(suite, name, has_control(), no_control, staged(), staged())

constexpr std::array<std::size_t, 6> some_sizes{1, 4096, 65'537, slot, slot + 1, 11 * slot + 12'345};

TEST_P_DEVICE_MEMORY(device_memory, of_the_peer_is_written_from_host_memory) {
  for (const std::size_t bytes : some_sizes) {
    const mr::region there = co_await on_device(bytes, 0);
    const mr::buffer source = co_await filled(pool(), bytes, 7);
    co_await client.write(source.slice(), there.remote());
    EXPECT_TRUE(has(there, 7)) << bytes;
  }
}

TEST_P_REGIONS(device_memory, that_is_written_to_host_memory_counts_there, staged(), staged()) {
  constexpr std::size_t bytes = 3 * slot;
  const mr::region here = co_await on_device(bytes, 7);
  const mr::porting::write_counter counter;
  mr::region there = co_await register_zeros(bytes, {.usage = for_peers, .disabled = true});
  mr::porting::bind(there, counter);
  co_await mr::porting::enable(there);
  co_await client.write(here.slice(), there.remote());
  co_await counter.wait_for(1);
  EXPECT_TRUE(holds(there.bytes(), 7));
  const std::vector<net::list_part> parts(5, {.local = here.slice(0, 10), .remote = there.remote().slice(0, 10)});
  co_await client.write(parts);
  co_await counter.wait_for(6);
}

TEST_P_DEVICE_MEMORY(device_memory, of_both_ends_is_written_and_read) {
  for (const std::size_t bytes : some_sizes) {
    const mr::region there = co_await on_device(bytes, 1);
    const mr::region here = co_await on_device(bytes, 2);
    co_await client.write(here.slice(), there.remote());
    EXPECT_TRUE(has(there, 2)) << bytes;
    const mr::region other = co_await on_device(bytes, 3);
    co_await client.read(other.slice(), there.remote());
    EXPECT_TRUE(has(other, 2)) << bytes;
  }
}

TEST_P_DEVICE_MEMORY(device_memory, of_a_cache_serves_operations_of_this_end) {
  mr::cache cache(device().domain());
  const mr::device_memory own = gpu()->allocate(slot);
  put(own.bytes(), pattern(slot, 4));
  const mr::region there = co_await on_device(slot, 5);
  const auto held = co_await cache.lease(own.bytes(), mr::usage::write_src | mr::usage::read_dst, gpu().get());
  co_await client.write(held.slice(), there.remote());
  EXPECT_TRUE(has(there, 4));
  put(there.bytes(), pattern(slot, 6));
  co_await client.read(held.slice(), there.remote());
  EXPECT_TRUE(holds(get(own.bytes()), 6));
}

TEST_P_DEVICE_MEMORY(device_memory, of_this_end_is_written_to_and_read_from_host_memory_of_the_peer) {
  for (const std::size_t bytes : some_sizes) {
    const net::exposure there = co_await expose_zeros(server, bytes, for_peers);
    const mr::region here = co_await on_device(bytes, 4);
    co_await client.write(here.slice(), there.remote());
    co_await client.flush(there.remote().slice(0, 1));
    EXPECT_TRUE(holds(there.memory().bytes(), 4)) << bytes;
    const mr::region back = co_await on_device(bytes, 5);
    co_await client.read(back.slice(), there.remote());
    EXPECT_TRUE(has(back, 4)) << bytes;
  }
}

// Its peer need not know of devices.
TEST_P_WINDOWS(device_memory, of_this_end_needs_nothing_of_the_peer) {
  EXPECT_FALSE(client.capabilities().device_memory);
  const net::exposure there = co_await expose_zeros(server, 5000, for_peers);
  const mr::region here = co_await on_device(5000, 4);
  co_await client.write(here.slice(), there.remote(), {.immediate = 17});
  const net::message word = co_await server.recv_or_throw();
  EXPECT_EQ(word.immediate, 17u);
  EXPECT_TRUE(holds(there.memory().bytes(), 4));
}

TEST_P_BETWEEN(device_memory, is_sent_beside_host_memory, staged(),
               options({.receive_size = 1 << 20, .receive_depth = 2, .device_memory = true})) {
  const mr::region body = co_await on_device(600'000, 8);
  const mr::buffer head = co_await filled(pool(), 100, 6);
  const std::array parts{head.slice(), body.slice(0, 300'000), body.slice(300'000, 300'000)};
  co_await client.send(parts, {.immediate = 5});
  const net::message got = co_await server.recv_or_throw();
  EXPECT_EQ(got.payload.size(), 600'100u);
  EXPECT_EQ(got.immediate, 5u);
  EXPECT_TRUE(holds(got.payload.bytes().first(100), 6));
  EXPECT_TRUE(holds(got.payload.bytes().subspan(100), 8));
}

TEST_P_DEVICE_MEMORY(device_memory, is_in_place_when_a_later_message_arrives) {
  const mr::region there = co_await on_device(3 * slot, 0);
  const mr::region here = co_await on_device(3 * slot, 5);
  mr::buffer word = co_await filled(pool(), 16, 1);
  std::array all{client.write(here.slice(), there.remote()), client.send(word)};
  const auto look = [&]() -> task<> {
    static_cast<void>(co_await server.recv_or_throw());
    EXPECT_TRUE(has(there, 5));
  };
  co_await when_all(client.batch(all), look());
}

TEST_P_DEVICE_MEMORY(device_memory, brings_immediate_data_once_it_is_in_place) {
  const mr::region there = co_await on_device(2 * slot + 5, 0);
  const mr::region here = co_await on_device(2 * slot + 5, 5);
  const auto write = [&]() -> task<> {
    co_await client.write(here.slice(), there.remote(), {.immediate = 0xFFFF'FFFE});
  };
  const auto look = [&]() -> task<> {
    const net::message word = co_await server.recv_or_throw();
    EXPECT_EQ(word.immediate, 0xFFFF'FFFEu);
    EXPECT_EQ(word.payload.size(), 0u);
    EXPECT_TRUE(has(there, 5));
  };
  co_await when_all(write(), look());
}

TEST_P_DEVICE_MEMORY(device_memory, is_flushed) {
  const mr::region there = co_await on_device(4096, 0);
  const mr::buffer source = co_await filled(pool(), 4096, 7);
  co_await client.write(source.slice(), there.remote());
  co_await client.flush(there.remote());
  EXPECT_TRUE(has(there, 7));
  const mr::region closed = co_await on_device(4096, 0, mr::usage::write_dst);
  EXPECT_EQ(co_await code_of(client.flush(closed.remote())), errc::access_denied);
}

std::vector<net::block_pair> shuffled_pairs(std::uint32_t count) {
  std::vector<std::uint32_t> places(count);
  std::iota(places.begin(), places.end(), 0u);
  std::shuffle(places.begin(), places.end(), std::mt19937(count));
  std::vector<net::block_pair> pairs(count);
  for (std::uint32_t i = 0; i != count; ++i) pairs[i] = {.local = i, .remote = places[i]};
  return pairs;
}

TEST_P_DEVICE_MEMORY(device_memory, moves_in_lists_of_blocks) {
  constexpr std::size_t block = 20'000;
  const auto pairs = shuffled_pairs(60);
  const std::size_t bytes = block * pairs.size();
  const mr::region there = co_await on_device(bytes, 0);
  const mr::region here = co_await on_device(bytes, 3);
  const net::block_list all{.local = here.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  auto push = client.write(all, {.immediate = 4});
  co_await push;
  EXPECT_EQ(push.done(), pairs.size());
  EXPECT_EQ((co_await server.recv_or_throw()).immediate, 4u);
  const auto sent = contents(here);
  const auto written = contents(there);
  for (const net::block_pair& each : pairs) {
    EXPECT_TRUE(std::equal(sent.begin() + static_cast<std::ptrdiff_t>(each.local * block),
                           sent.begin() + static_cast<std::ptrdiff_t>((each.local + 1) * block),
                           written.begin() + static_cast<std::ptrdiff_t>(each.remote * block)));
  }
  const mr::region back = co_await on_device(bytes, 9);
  const net::block_list again{.local = back.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  auto fetch = client.read(again);
  co_await fetch;
  EXPECT_EQ(contents(back), sent);
}

TEST_P_DEVICE_MEMORY(device_memory, of_no_bytes_moves_in_its_turn) {
  const mr::region there = co_await on_device(8192, 0);
  const mr::region here = co_await on_device(8192, 3);
  const auto part = [&](std::size_t from, std::size_t bytes) {
    return net::list_part{here.slice(from, bytes), there.remote().slice(from, bytes)};
  };
  const std::array parts{part(0, 0), part(0, 100), part(100, 0), part(100, 8092), part(8192, 0)};
  auto list = client.write(parts, {.immediate = 1});
  co_await list;
  EXPECT_EQ(list.done(), parts.size());
  static_cast<void>(co_await server.recv_or_throw());
  EXPECT_TRUE(has(there, 3));
  co_await client.write(here.slice(0, 0), there.remote().slice(0, 0));
  co_await client.send(here.slice(0, 0));
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 0u);
}

TEST_P_DEVICE_MEMORY(device_memory, of_lists_is_of_one_kind_at_each_end) {
  const mr::region there = co_await on_device(8192, 0);
  const mr::region here = co_await on_device(4096, 3);
  const mr::buffer host = co_await filled(pool(), 4096, 1);
  const std::array mixed{net::list_part{here.slice(), there.remote().slice(0, 4096)},
                         net::list_part{host.slice(), there.remote().slice(4096, 4096)}};
  EXPECT_EQ(co_await code_of(client.write(mixed)), errc::invalid_argument);
  EXPECT_TRUE(has(there, 0));
}

TEST_P(device_memory, of_the_peer_needs_the_option_at_both_ends) {
  const auto script = [&](net::connection& client, net::connection& server) -> task<> {
    EXPECT_FALSE(client.capabilities().device_memory);
    const mr::region there = co_await on_device(4096, 0);
    mr::buffer host = co_await filled(pool(), 4096, 1);
    const auto failure = co_await failure_of(client.write(host, there.remote()));
    EXPECT_TRUE(failed_with(failure, errc::not_supported, "device_memory"));
    EXPECT_EQ(co_await code_of(server.expose(there.slice(), for_peers)), errc::access_denied);
    co_await expect_delivery(client, server);
  };
  between_peers(script, staged(), options());
  between_peers(script, options(), staged());
}

TEST_P_DEVICE_MEMORY(device_memory, has_no_atomic_operations) {
  EXPECT_EQ(co_await code_of(device().domain().register_memory(
                gpu()->allocate(4096), {.usage = mr::usage::atomic_dst, .device = gpu().get()})),
            errc::invalid_argument);
  const mr::region there = co_await on_device(4096, 0);
  const mr::remote_region lie(there.remote().places(), 8, mr::usage::atomic_dst);
  EXPECT_EQ(co_await code_of(client.fetch_add(lie, 1)), errc::not_supported);
}

TEST_P_DEVICE_MEMORY(device_memory, is_refused_to_whoever_lies_about_it_and_the_connection_goes_on) {
  const mr::region readable = co_await on_device(4096, 2, mr::usage::read_src);
  const mr::remote_place place = readable.remote().places().back();
  if (place.fabric != mr::place_behind_owner) co_return;
  mr::buffer host = co_await filled(pool(), 4096, 1);
  const auto forged = [&](std::uint64_t key, std::uint64_t address) {
    const mr::remote_place lie{.fabric = mr::place_behind_owner, .address = address, .key = key};
    return mr::remote_region({&lie, 1}, 4096, for_peers);
  };
  EXPECT_EQ(co_await code_of(client.write(host, forged(place.key, 0))), errc::remote_access);
  EXPECT_EQ(co_await code_of(client.write(host, forged(place.key + 1, 0))), errc::remote_access);
  EXPECT_EQ(co_await code_of(client.read(host, forged(place.key, 1))), errc::remote_access);
  EXPECT_EQ(co_await code_of(client.read(host, forged(place.key, 0xFFFF'FFFF'FFFF'0000))), errc::remote_access);
  EXPECT_TRUE(has(readable, 2));
  co_await client.read(host, readable.remote());
  EXPECT_TRUE(holds(host.bytes(), 2));
}

TEST_P_DEVICE_MEMORY(device_memory, that_was_released_is_not_found_any_more) {
  mr::region there = co_await on_device(4096, 2);
  const mr::remote_region was = there.remote();
  if (was.places().back().fabric != mr::place_behind_owner) co_return;
  mr::buffer host = co_await filled(pool(), 4096, 1);
  co_await client.write(host, was);
  co_await there.release();
  EXPECT_EQ(co_await code_of(client.write(host, was)), errc::remote_access);
}

TEST_P_DEVICE_MEMORY(device_memory, is_lent_to_one_peer_until_it_is_taken_back) {
  const mr::region whole = co_await on_device(8192, 2, for_all | mr::usage::bind_window);
  net::exposure lent = co_await server.expose(whole.slice(4096, 4096), mr::usage::write_dst);
  mr::buffer host = co_await filled(pool(), 4096, 1);
  co_await client.write(host, lent.remote());
  const auto now = contents(whole);
  EXPECT_TRUE(holds(std::span(now).subspan(4096), 1));
  EXPECT_EQ(co_await code_of(client.read(host, lent.remote())), errc::access_denied);
  connected others = co_await connect_pair(staged(), staged());
  EXPECT_EQ(co_await code_of(others.client.write(host, lent.remote())), errc::remote_access);
  const mr::remote_region was = lent.remote();
  static_cast<void>(co_await lent.revoke());
  EXPECT_EQ(co_await code_of(client.write(host, was)), errc::remote_access);
  net::exposure until_the_end = co_await server.expose(whole.slice(0, 4096), for_peers);
  co_await client.write(host, until_the_end.remote());
  co_await client.close();
  EXPECT_EQ(co_await until_the_end.ended(), net::exposure_end::connection);
}

TEST_P_CONTROLLED(device_memory, is_kept_until_a_copy_of_the_peers_has_ended) {
  mr::region there = co_await on_device(4096, 2);
  if (there.remote().places().back().fabric != mr::place_behind_owner) co_return;
  const mr::buffer host = co_await filled(pool(), 4096, 1);
  co_await client.write(host.slice(), there.remote());
  while (control().outstanding() != 0) co_await yield();
  control().hold();
  attempt write(tasks, client.write(host.slice(), there.remote()));
  while (control().outstanding() == 0 && !write.ended()) co_await yield();
  attempt release(tasks, there.release());
  for (int i = 0; i != 100; ++i) co_await yield();
  EXPECT_FALSE(release.ended());
  control().release();
  EXPECT_TRUE(co_await succeeds(write));
  EXPECT_TRUE(co_await succeeds(release));
}

// The executor's own thread waits for the device then, which it must not do for itself.
TEST_P_BETWEEN(device_memory, that_is_borrowed_may_be_deregistered_in_the_middle_of_a_copy, staged(), staged()) {
  const mr::device_memory memory = gpu()->allocate(4096);
  const mr::buffer host = co_await filled(pool(), 4096, 1);
  for (int i = 0; i != 20; ++i) {
    std::optional<mr::region> there =
        co_await device().domain().register_memory(memory.bytes(), {.usage = for_peers, .device = gpu().get()});
    attempt write(tasks, client.write(host.slice(), there->remote()));
    for (int turns = 0; turns != i && !write.ended(); ++turns) co_await yield();
    there.reset();
    co_await write.end();
    EXPECT_TRUE(write.succeeded() || write.code() == errc::remote_access) << write.words();
  }
}

TEST_P_DEVICE_MEMORY(device_memory, of_both_directions_moves_at_once) {
  const auto exchange = [&](net::connection& via, unsigned seed) -> task<> {
    for (unsigned i = 0; i != 6; ++i) {
      const std::size_t bytes = some_sizes[i];
      const mr::region there = co_await on_device(bytes, 0);
      const mr::region here = co_await on_device(bytes, seed + i);
      co_await via.write(here.slice(), there.remote());
      EXPECT_TRUE(has(there, seed + i));
      mr::buffer sink = co_await zeroed(pool(), bytes);
      co_await via.read(sink, there.remote());
      EXPECT_TRUE(holds(sink.bytes(), seed + i));
    }
  };
  co_await when_all(exchange(client, 10), exchange(server, 20));
}

TEST_P_BETWEEN(device_memory, of_an_operation_that_is_stopped_is_free_when_that_has_ended, staged(), staged()) {
  const mr::region there = co_await on_device(20 * slot, 2);
  const mr::region here = co_await on_device(20 * slot, 3);
  attempt write(tasks, client.write(here.slice(), there.remote()));
  co_await settle();
  write.stop();
  co_await write.end();
  EXPECT_TRUE(write.succeeded() || write.code() == errc::canceled) << write.words();
}

TEST_P_CONTROLLED(device_memory, of_a_buffer_whose_write_is_stopped_lets_the_connection_go_on) {
  const mr::region there = co_await on_device(4096, 2);
  if (there.remote().places().back().fabric != mr::place_behind_owner) co_return;
  mr::buffer host = co_await filled(pool(), 4096, 1);
  control().hold();
  attempt write(tasks, client.write(host, there.remote()));
  while (control().outstanding() == 0 && !write.ended()) co_await yield();
  EXPECT_EQ(co_await code_once_stopped(write), errc::canceled);
  EXPECT_TRUE(write.posted());
  EXPECT_TRUE(host.in_use());
  control().release();
  mr::buffer sink = co_await zeroed(pool(), 4096);
  co_await client.read(sink, there.remote());
  EXPECT_TRUE(holds(sink.bytes(), 1));
  EXPECT_FALSE(host.in_use());
}

TEST_P_CONTROLLED(device_memory, lists_that_are_stopped_say_how_far_they_came) {
  constexpr std::size_t block = 50'000;
  const auto pairs = shuffled_pairs(200);
  const mr::region there = co_await on_device(block * pairs.size(), 0);
  const mr::region here = co_await on_device(block * pairs.size(), 3);
  const net::block_list all{.local = here.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  std::size_t done = 0;
  const auto push = [&]() -> task<> {
    auto list = client.write(all);
    try {
      co_await list;
    } catch (const error&) {
      done = list.done();
      throw;
    }
    done = list.done();
  };
  attempt write(tasks, push());
  while (control().outstanding() == 0 && !write.ended()) co_await yield();
  write.stop();
  co_await write.end();
  EXPECT_TRUE(write.succeeded() || write.code() == errc::canceled) << write.words();
  const auto sent = contents(here);
  const auto written = contents(there);
  for (std::size_t i = 0; i != done; ++i) {
    EXPECT_EQ(std::memcmp(sent.data() + pairs[i].local * block, written.data() + pairs[i].remote * block, block), 0);
  }
  mr::buffer host = co_await filled(pool(), 16, 1);
  co_await client.send(host);
}

TEST_P(device_memory, in_the_middle_of_a_write_survives_the_end_of_the_connection) {
  for (int turns : {0, 1, 2, 5, 10, 30, 100}) {
    between_busy_peers(
        [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
          const mr::region there = co_await on_device(20 * slot, 2);
          const mr::region here = co_await on_device(20 * slot, 3);
          attempt write(tasks, client.write(here.slice(), there.remote()));
          for (int i = 0; i != turns; ++i) co_await yield();
          (turns % 2 == 0 ? client : server).abort();
          co_await write.end();
        },
        staged(), staged());
  }
}

TEST_P_BETWEEN(device_memory, in_the_middle_of_a_write_is_copied_before_an_orderly_close, staged(), staged()) {
  const mr::region there = co_await on_device(10 * slot, 2);
  const mr::region here = co_await on_device(10 * slot, 3);
  attempt write(tasks, client.write(here.slice(), there.remote()));
  co_await yield();
  co_await client.close();
  EXPECT_TRUE(co_await succeeds(write));
  EXPECT_TRUE(has(there, 3));
}

TEST_P_DEVICE_MEMORY(device_memory, that_is_freed_while_it_is_registered_is_an_error) {
  mr::buffer host = co_await filled(pool(), 4096, 1);
  std::optional<mr::device_memory> memory = gpu()->allocate(4096);
  const auto bytes = memory->bytes();
  mr::region borrowed = co_await device().domain().register_memory(bytes, {.usage = for_all, .device = gpu().get()});
  if (borrowed.remote().places().back().fabric != mr::place_behind_owner) co_return;
  memory.reset();
  EXPECT_EQ(co_await code_of(client.write(host, borrowed.remote())), errc::remote_access);
  const mr::device_memory next = gpu()->allocate(4096);  // at the same address, maybe
  EXPECT_EQ(co_await code_of(client.write(host, borrowed.remote())), errc::remote_access);
  EXPECT_EQ(co_await code_of(client.send(borrowed.slice(0, 100))), errc::invalid_argument);
  co_await client.send(host);
}

TEST_P_CONTROLLED(device_memory, of_a_context_that_is_gone_is_an_error) {
  mr::buffer host = co_await filled(pool(), 4096, 1);
  const mr::region there = co_await on_device(4096, 2);
  if (there.remote().places().back().fabric != mr::place_behind_owner) co_return;
  co_await client.write(host, there.remote());
  control().destroy_context(0);
  EXPECT_EQ(co_await code_of(client.write(host, there.remote())), errc::remote_access);
  EXPECT_NE(co_await code_of(client.send(there.slice(0, 100))), std::error_code());
  EXPECT_EQ(
      co_await code_of(device().domain().register_memory(there.bytes(), {.usage = for_all, .device = gpu().get()})),
      errc::closed);
  co_await expect_delivery(client, server);
}

TEST_P(device_memory, outlives_the_failure_of_any_call_of_the_driver) {
  if (!has_control()) GTEST_SKIP() << no_control;
  bool more = true;
  for (std::uint64_t nth = 1; more; ++nth) {
    between([&](net::connection& client, net::connection&) -> task<> {
      const mr::region there = co_await on_device(slot + 10, 2);
      const mr::region here = co_await on_device(slot + 10, 3);
      control().fail_nth(nth);
      const auto failed = co_await code_of(client.write(here.slice(), there.remote()));
      more = control().has_failed();
      control().fail_nth(0);
      EXPECT_TRUE(failed || has(there, 3)) << nth;
    });
    ASSERT_LT(nth, 1000u);
  }
}

template <class Operation>
sim::loose_task await_loosely(Operation operation) {
  static_cast<void>(co_await std::move(operation));
}

TEST_P_CONTROLLED(device_memory,
                  of_a_task_that_is_destroyed_in_the_middle_keeps_its_buffer_until_the_copies_have_ended) {
  const mr::region there = co_await on_device(4096, 2);
  if (there.remote().places().back().fabric != mr::place_behind_owner) co_return;
  mr::buffer host = co_await filled(pool(), 4096, 1);
  co_await client.write(host, there.remote());
  while (control().outstanding() != 0) co_await yield();
  fill(host.bytes(), 5);
  control().hold();
  {
    const auto writing = await_loosely(client.write(host, there.remote()));
    writing.start(home());
    while (control().outstanding() == 0) co_await yield();
    const auto waiting = await_loosely(client.write(host, there.remote()));
    waiting.start(home());
    while (!writing.at_rest() || !waiting.at_rest()) co_await yield();
    EXPECT_TRUE(host.in_use());
  }
  EXPECT_TRUE(host.in_use());
  control().release();
  mr::buffer sink = co_await zeroed(pool(), 4096);
  co_await client.read(sink, there.remote());
  EXPECT_TRUE(holds(sink.bytes(), 5));
  EXPECT_FALSE(host.in_use());
}

TEST_P(device_memory, that_is_borrowed_by_a_task_that_is_destroyed_ends_the_program) {
  if (!has_control()) GTEST_SKIP() << no_control;
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto misuse = [&](bool in_a_list) {
    between([&](net::connection& client, net::connection&) -> task<> {
      const mr::region there = co_await on_device(4096, 2);
      const mr::region here = co_await on_device(4096, 2);
      const std::array parts{net::list_part{here.slice(), there.remote()}};
      control().hold();
      const auto writing =
          in_a_list ? await_loosely(client.write(parts)) : await_loosely(client.write(here.slice(), there.remote()));
      writing.start(home());
      while (control().outstanding() == 0 || !writing.at_rest()) co_await yield();
    });
  };
  EXPECT_DEATH(misuse(false), "a task was destroyed in the middle of a write on borrowed memory");
  EXPECT_DEATH(misuse(true), "a task was destroyed in the middle of a list");
}

// Whatever is done at once, in both directions, arrives where it belongs, or says that it has not.
class device_memory_in_a_crowd : public device_memory {
 protected:
  enum class what : std::uint8_t { write, read, list, send };

  struct plan {
    what kind = what::write;
    bool from_device = false;
    bool to_device = false;
    bool stops = false;
    std::size_t bytes = 0;
    unsigned seed = 0;
  };
  static plan draw(std::mt19937& random) {
    const auto below = [&](unsigned bound) { return std::uniform_int_distribution<unsigned>(0, bound - 1)(random); };
    plan made{.kind = static_cast<what>(below(4)), .from_device = below(2) == 0};
    made.to_device = !made.from_device || below(2) == 0;
    made.stops = below(8) == 0;
    made.bytes = below(4) == 0 ? below(3 * slot) : below(9000) + 1;
    made.seed = below(1000);
    return made;
  }

  task<> carry_out(net::connection& from, plan how) {
    const mr::region here = co_await make(how.from_device, how, how.seed);
    const mr::region there = co_await make(how.to_device, how, how.seed + 1);
    const mr::slice local = here.slice();
    if (how.kind == what::send) {
      co_await from.send(local.subslice(0, std::min<std::size_t>(how.bytes, 4000)));
    } else if (how.kind == what::write) {
      co_await from.write(local, there.remote());
    } else if (how.kind == what::read) {
      co_await from.read(local, there.remote());
    } else {
      std::vector<net::list_part> parts;
      for (std::size_t at = 0; at < how.bytes; at += 3000) {
        const std::size_t length = std::min<std::size_t>(3000, how.bytes - at);
        parts.push_back({local.subslice(at, length), there.remote().slice(at, length)});
      }
      co_await from.write(parts);
    }
    if (how.kind == what::send) co_return;
    if (!how.to_device) {
      co_await from.flush(there.remote());  // before its memory goes
      co_return;
    }
    const unsigned expected = how.kind == what::read ? how.seed + 1 : how.seed;
    EXPECT_TRUE(has(there, expected)) << "seed " << how.seed;
    EXPECT_TRUE(!how.from_device || has(here, expected)) << "seed " << how.seed;
  }

 private:
  task<mr::region> make(bool is_on_device, plan how, unsigned seed) {
    if (is_on_device) co_return co_await on_device(how.bytes, seed);
    co_return co_await device().domain().register_memory(pattern(how.bytes, seed), {.usage = for_all});
  }
};
WEFT_ON_EVERY_TRANSPORT(device_memory_in_a_crowd);

TEST_P(device_memory_in_a_crowd, is_never_mistaken_for_other_memory) {
  if (!opens_regions()) GTEST_SKIP() << no_open_regions;
  for (unsigned seed = 1; seed != 9; ++seed) {
    std::mt19937 random(seed);
    if (has_control()) control().seed(seed);
    const auto script = [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
      std::vector<std::unique_ptr<attempt>> all;
      const auto drain = [](net::connection& at) -> task<> {
        while (co_await at.recv()) {
        }
      };
      attempt draining_client(tasks, drain(client));
      attempt draining_server(tasks, drain(server));
      bool stops = false;
      for (int i = 0; i != 16; ++i) {
        const plan how = draw(random);
        all.push_back(std::make_unique<attempt>(tasks, carry_out(i % 2 == 0 ? client : server, how)));
        co_await yield();
        if (!how.stops || seed % 2 == 0) continue;
        co_await settle();
        if (!all.back()->ended()) all.back()->stop();
        stops = true;
      }
      for (const auto& each : all) {
        co_await each->end();
        EXPECT_TRUE(stops || each->succeeded()) << "seed " << seed << ": " << each->words();
      }
      client.abort();
      co_await draining_client.end();
      co_await draining_server.end();
    };
    between_busy_peers(script, staged(), staged());
  }
}

TEST_P_TASK(device_memory, is_registered_only_as_what_it_is) {
  mr::domain& domain = device().domain();
  const mr::device_memory memory = gpu()->allocate(8192);
  const auto code = [&](std::span<std::byte> bytes, mr::registration_options how) -> task<std::error_code> {
    how.device = gpu().get();
    how.usage = for_all;
    co_return co_await code_of(domain.register_memory(bytes, how));
  };
  std::vector<std::byte> host(4096);
  EXPECT_EQ(co_await code(host, {}), errc::invalid_argument);
  EXPECT_EQ(co_await code({memory.data(), 1 << 20}, {}), errc::invalid_argument);
  EXPECT_EQ(co_await code(memory.bytes(), {.zero_based = true}), errc::invalid_argument);
  EXPECT_EQ(co_await code(memory.bytes(), {.on_demand = true}), errc::invalid_argument);
  const auto foreign = has_control() ? control().allocate(1, 4096, foreign_memory::other_context) : memory.bytes();
  if (has_control()) {
    EXPECT_EQ(co_await code(foreign, {}), errc::wrong_device);
    control().free(foreign);
  }
  const std::array ranges{memory.bytes().first(4096), memory.bytes().subspan(4096)};
  const auto several = [&]() -> task<> {
    static_cast<void>(co_await domain.register_memory(ranges, {.usage = for_all, .device = gpu().get()}));
  };
  const std::error_code refused = co_await code_of(several());
  EXPECT_TRUE(refused == errc::invalid_argument || refused == errc::not_supported) << refused.message();
  EXPECT_EQ(co_await code(memory.bytes(), {}), std::error_code());
}

TEST_P_BETWEEN(device_memory, of_a_pool_comes_in_blocks_that_are_waited_for, staged(), staged()) {
  constexpr std::size_t block = 5000;
  mr::domain& domain = device().domain();
  mr::device_pool pages =
      co_await mr::device_pool::make(domain, gpu(), {.block_bytes = block, .blocks = 4, .usage = for_all});
  const mr::region there = co_await on_device(4 * block, 0);
  std::vector<mr::device_block> taken;
  std::vector<net::block_pair> pairs;
  while (std::optional<mr::device_block> next = pages.try_allocate()) {
    put(next->slice().bytes(), pattern(block, next->number()));
    pairs.push_back({.local = next->number(), .remote = next->number()});
    taken.push_back(std::move(*next));
  }
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_EQ(pages.available(), 0u);
  const net::block_list all{
      .local = pages.region().slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
  co_await client.write(all);
  const auto written = contents(there);
  for (std::uint32_t i = 0; i != 4; ++i) EXPECT_TRUE(holds(std::span(written).subspan(i * block, block), i));

  attempt waits(tasks, pages.allocate());
  co_await settle();
  EXPECT_FALSE(waits.ended());
  EXPECT_FALSE(pages.try_allocate());
  taken.pop_back();
  EXPECT_TRUE(co_await succeeds(waits));
  EXPECT_EQ(pages.available(), 1u);  // the attempt has dropped its own
  attempt stopped(tasks, [](mr::device_pool& from) -> task<> {
    std::vector<mr::device_block> more;
    for (;;) more.push_back(co_await from.allocate());
  }(pages));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(stopped), errc::canceled);
  EXPECT_EQ(pages.available(), 1u);
  EXPECT_EQ(co_await code_of(mr::device_pool::make(domain, gpu(), {.block_bytes = block})), errc::zero_length);
  EXPECT_EQ(co_await code_of(mr::device_pool::make(domain, gpu(), {.block_bytes = SIZE_MAX, .blocks = 2})),
            errc::out_of_range);
}

TEST_P_TASK(device_memory, of_a_copy_whose_task_is_destroyed_is_free_only_then) {
  const mr::device_memory memory = gpu()->allocate(4 * slot);
  std::vector<std::byte> host = pattern(memory.size(), 4);
  co_await mr::device_copy(gpu(), memory.data(), host.data(), 1);  // the engine is there
  {
    const auto copying = await_loosely(mr::device_copy(gpu(), memory.data(), host.data(), host.size()));
    copying.start(home());
    for (int turns = 0; turns < 3 || !copying.at_rest(); ++turns) co_await yield();
  }
  fill(host, 5);  // the device has all that it was to have by now, or nothing
  const auto now = get(memory.bytes());
  EXPECT_TRUE(holds(now, 4));
}

TEST_P_TASK_WHERE(device_memory, is_filled_by_a_stream_of_the_program_that_is_waited_for, has_control(), no_control) {
  using namespace mr::cuda;
  const mr::cuda::driver& functions = load_driver(stand_in::library());
  const mr::device_memory memory = gpu()->allocate(slot);
  const std::vector<std::byte> host = pattern(slot, 7);
  context_handle context = nullptr;
  EXPECT_EQ(functions.device_primary_ctx_retain(&context, 0), status::success);
  EXPECT_EQ(functions.ctx_push_current(context), status::success);
  stream_handle stream = nullptr;
  EXPECT_EQ(functions.stream_create(&stream, 1), status::success);
  const auto fill_memory = [&] {
    const auto address = [](const std::byte* place) { return device_address{reinterpret_cast<std::uintptr_t>(place)}; };
    return functions.memcpy_async(address(memory.data()), address(host.data()), slot, stream);
  };
  EXPECT_EQ(fill_memory(), status::success);
  co_await mr::stream_finished(gpu(), stream);
  EXPECT_TRUE(holds(get(memory.bytes()), 7));
  control().hold();  // it would never end
  EXPECT_EQ(fill_memory(), status::success);
  {
    const auto waiting = await_loosely(mr::stream_finished(gpu(), stream));
    waiting.start(home());
    for (int turns = 0; turns < 3 || !waiting.at_rest(); ++turns) co_await yield();
  }
  control().release();
  co_await mr::stream_finished(gpu(), stream);
  EXPECT_EQ(functions.stream_synchronize(stream), status::success);  // the driver has closed its copies of descriptors
  EXPECT_EQ(functions.stream_destroy(stream), status::success);
  EXPECT_EQ(functions.ctx_pop_current(&context), status::success);
  EXPECT_EQ(functions.device_primary_ctx_release(0), status::success);
}

TEST_P_TASK(device_memory, is_copied_by_the_program_in_either_direction) {
  std::vector<std::byte> host = pattern(100'000, 4);
  const mr::device_memory memory = gpu()->allocate(host.size());
  co_await mr::device_copy(gpu(), memory.data(), host.data(), host.size());
  EXPECT_TRUE(holds(get(memory.bytes()), 4));
  std::vector<std::byte> back(host.size());
  co_await mr::device_copy(gpu(), back.data(), memory.data(), back.size());
  EXPECT_EQ(back, host);
  EXPECT_EQ(co_await code_of(mr::device_copy(gpu(), back.data(), host.data(), back.size())), errc::invalid_argument);
}

}  // namespace
}  // namespace weft::test

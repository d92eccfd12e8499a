// SPDX-License-Identifier: Apache-2.0
// scale_cost CASE SIZE COUNT: does something so many times with what holds so many items already, and prints as JSON
// how long each took. Under callgrind with --instr-atstart=no, the instructions of that alone are counted: see
// scale.py.
#include <weft/mr/cache.hpp>
#include <weft/mr/pool.hpp>
#include <weft/net/connection/lending.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/software/exposed_keys.hpp>
#include <weft/net/software/key_table.hpp>

#include <fmt/core.h>

#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "kit/idle_link.hpp"
#include "memory_parts.hpp"

namespace {

using namespace weft;
using bench::plain_domain;
using bench::run;
using test::address_space;

constexpr net::software::key_rights readable{.remote_read = true};

/// What is measured: the median of several stretches.
class stopwatch : private weft::test::immovable {
 public:
  stopwatch() { CALLGRIND_START_INSTRUMENTATION; }
  ~stopwatch() {
    CALLGRIND_STOP_INSTRUMENTATION;
    times_.resize(used_);
    std::sort(times_.begin(), times_.end());
    fmt::print("{{\"nanoseconds\": {:.1f}}}\n", times_.empty() ? 0.0 : times_[times_.size() / 2]);
  }

  /// After each operation.
  void lap() noexcept {
    if (++laps_ % stretch != 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (used_ != times_.size()) {
      times_[used_++] = std::chrono::duration<double, std::nano>(now - begin_).count() / static_cast<double>(stretch);
    }
    begin_ = now;
  }

 private:
  static constexpr std::size_t stretch = 10;
  std::vector<double> times_ = std::vector<double>(1000);
  std::size_t used_ = 0;
  std::size_t laps_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// ---- keys of a device ----

void key_look_up(std::size_t size, std::size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::byte> memory(8);
  net::software::key_table table;
  net::software::key_table::reader reader(table);
  std::vector<std::uint32_t> keys(size);
  for (std::uint32_t& key : keys) key = table.insert(memory, 0, readable);
  stopwatch watch;
  for (std::size_t i = 0; i < count; ++i) {
    const net::software::key_table::reader::batch inside(reader);
    const std::uint32_t key = keys[random() % size];
    if (reader.check_read(key, 0, 8, 1) != net::software::access_status::ok) throw std::logic_error("no such key");
    watch.lap();
  }
}

void key_open_and_erase(std::size_t size, std::size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::byte> memory(8);
  net::software::key_table table;
  std::vector<std::uint32_t> keys(size);
  for (std::uint32_t& key : keys) key = table.insert(memory, 0, readable);
  stopwatch watch;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t& key = keys[random() % size];
    table.erase(std::exchange(key, table.insert(memory, 0, readable)));
    watch.lap();
  }
}

// ---- exposures of a connection ----

void expose_and_revoke(std::size_t size, std::size_t count) {
  run([=]() -> task<> {
    std::mt19937_64 random(1);
    const auto home = std::make_shared<net::software::domain>(system_calls::kernel(), "scale");
    std::vector<std::byte> memory(4096);
    const mr::region region =
        co_await home->register_memory(memory, {.usage = mr::usage::send | mr::usage::bind_window});
    net::software::exposed_keys exposed(*home, 1);
    std::vector<std::uint32_t> keys(size);
    for (std::uint32_t& key : keys) key = exposed.open(region.slice(), mr::usage::read_src, nullptr);
    {
      stopwatch watch;
      for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t& key = keys[random() % size];
        exposed.revoke(std::exchange(key, exposed.open(region.slice(), mr::usage::read_src, nullptr)), false);
        watch.lap();
      }
    }
    exposed.revoke_all();
  });
}

void retire_and_confirm(std::size_t size, std::size_t count) {
  run([=]() -> task<> {
    std::mt19937_64 random(1);
    net::live_statistics counters;
    test::idle_link below;
    const auto keys = std::make_shared<net::link_keys>(counters);
    keys->attach(below);
    std::uint32_t next = 0;
    const auto lend = [&](std::uint32_t key) {
      auto item = std::make_unique<net::lending>(keys, time_point::max());
      static_cast<void>(keys->opened(*item, key, 64));  // it has no deadline
      return item.release();
    };
    std::vector<net::lending*> lent(size);
    for (net::lending*& item : lent) item = lend(++next);
    {
      stopwatch watch;
      for (std::size_t i = 0; i < count; ++i) {
        net::link_keys::retire(lend(++next));
        keys->confirm(next);
        watch.lap();
      }
    }
    for (net::lending* const item : lent) net::link_keys::end(item);
    keys->detach();
    co_return;
  });
}

// ---- arenas of a pool ----

void recut_an_arena(std::size_t size, std::size_t count) {
  constexpr std::size_t arena_bytes = std::size_t{256} << 10;
  constexpr std::size_t half = arena_bytes / 2;
  constexpr std::size_t less = std::size_t{80} << 10;  // a run of chunks that is another size's
  run([=]() -> task<> {
    std::mt19937_64 random(1);
    mr::pool pool(
        std::make_shared<plain_domain>(),
        {.max_bytes = size * arena_bytes, .arena_bytes = arena_bytes, .receive_fraction = 0, .huge_pages = false});
    std::vector<std::optional<mr::buffer>> all(2 * size);
    for (auto& item : all) item.emplace(co_await pool.allocate(half));
    stopwatch watch;
    for (std::size_t i = 0; i < count; ++i) {
      auto& item = all[random() % all.size()];
      item.reset();
      item = pool.try_allocate(less);
      if (!item) throw std::logic_error("there is no room for the smaller buffer");
      item.reset();
      item = pool.try_allocate(half);
      if (!item) throw std::logic_error("there is no room for the larger buffer");
      watch.lap();
    }
  });
}

// ---- extents of a cache ----

constexpr std::size_t extent_bytes = 4096;

template <class Operation>
void with_extents(std::size_t size, std::size_t count, Operation operation) {
  run([=]() -> task<> {
    std::mt19937_64 random(1);
    const address_space memory(2 * size * extent_bytes);
    const auto extent = [&](std::size_t number) {
      return memory.bytes().subspan(number % (2 * size) * extent_bytes, extent_bytes - 1);
    };
    mr::cache cache(*std::make_shared<plain_domain>(), {.max_bytes = memory.bytes().size(), .max_regions = size});
    for (std::size_t i = 0; i < size; ++i) {
      const mr::lease held = co_await cache.lease(extent(i), mr::usage::send);
    }
    stopwatch watch;
    for (std::size_t i = 0; i < count; ++i) {
      const auto wanted = extent(operation(cache, extent, random(), i, size));
      const mr::lease held = co_await cache.lease(wanted, mr::usage::send);
      watch.lap();
    }
  });
}

void lease_what_is_kept(std::size_t size, std::size_t count) {
  with_extents(size, count, [](mr::cache&, const auto&, std::uint64_t random, std::size_t, std::size_t kept) {
    return static_cast<std::size_t>(random % kept);
  });
}

void lease_and_evict(std::size_t size, std::size_t count) {
  with_extents(size, count,
               [](mr::cache&, const auto&, std::uint64_t, std::size_t i, std::size_t kept) { return kept + i; });
}

void invalidate_and_lease(std::size_t size, std::size_t count) {
  with_extents(size, count,
               [](mr::cache& cache, const auto& extent, std::uint64_t random, std::size_t, std::size_t kept) {
                 const auto number = static_cast<std::size_t>(random % kept);
                 cache.invalidate(extent(number));
                 return number;
               });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::map<std::string_view, void (*)(std::size_t, std::size_t)> cases = {
      {"expose_and_revoke", expose_and_revoke},
      {"invalidate_and_lease", invalidate_and_lease},
      {"key_look_up", key_look_up},
      {"key_open_and_erase", key_open_and_erase},
      {"lease_and_evict", lease_and_evict},
      {"lease_what_is_kept", lease_what_is_kept},
      {"recut_an_arena", recut_an_arena},
      {"retire_and_confirm", retire_and_confirm},
  };
  const auto found = argc == 4 ? cases.find(argv[1]) : cases.end();
  if (found == cases.end()) {
    std::fputs("usage: scale_cost CASE SIZE COUNT\n", stderr);
    return 2;
  }
  found->second(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "scale_cost: %s\n", why.what());
  return 1;
}

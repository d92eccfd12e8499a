// SPDX-License-Identifier: Apache-2.0
// memory_cost CASE COUNT: does something with memory so many times; `./dev bench memory` counts the difference of two
// runs. memory_cost report MEBIBYTES MEBIBYTES_OF_MODEL: what can only be timed, and how much of each size class goes
// to waste, as JSON.
#include <weft/mr/cache.hpp>
#include <weft/mr/pool.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

#include "count_allocations.hpp"
#include "memory_parts.hpp"

namespace {

using namespace weft;
using bench::plain_domain;
using bench::run;
using bench::sleeping;
using test::address_space;
using wall = std::chrono::steady_clock;

constexpr std::size_t message_bytes = 4096;
constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Memory of a model: pages that nobody has touched are cleared, and pages that are there are pinned, at so many bytes
/// a second of the thread that does it, which sleeps instead. Then the memory may be larger than the machine's, and the
/// threads more than its cores. The rates are those of one core of a server: clear_page() of memory that is not in its
/// caches, and the pinning of huge pages, 13 us for each.
class model_memory final : public system_calls {
 public:
  static constexpr double cleared_per_second = 4e9;
  static constexpr double pinned_per_second = 160e9;

  /// What ibv_reg_mr(3) does: pages that are not there are cleared on its way.
  void pin(std::size_t bytes) noexcept {
    const std::size_t there = std::min(bytes, provided_.exchange(0));
    work(static_cast<double>(bytes - there) / cleared_per_second + static_cast<double>(bytes) / pinned_per_second);
    settle();
  }

 private:
  int madvise(void*, std::size_t length, int advice) noexcept override {
    if (advice == MADV_HUGEPAGE) return 0;
    work(static_cast<double>(length) / cleared_per_second);
    provided_ += length;
    return 0;
  }

  // Sleeps are too coarse for single calls: a thread sleeps when it owes some milliseconds, and owes less if it was
  // woken late.
  static void work(double seconds) noexcept {
    constexpr std::chrono::milliseconds long_ago(20);
    const wall::time_point now = wall::now();
    if (now - busy_until_ > long_ago) busy_until_ = now;
    busy_until_ += std::chrono::duration_cast<wall::duration>(std::chrono::duration<double>(seconds));
    if (busy_until_ - now > std::chrono::milliseconds(4)) settle();
  }
  static void settle() noexcept { std::this_thread::sleep_until(busy_until_); }

  static thread_local wall::time_point busy_until_;
  std::atomic<std::size_t> provided_{0};
};

thread_local wall::time_point model_memory::busy_until_;

/// A domain whose device pins memory of the model.
class model_domain final : public mr::domain {
 public:
  explicit model_domain(model_memory& memory)
      : mr::domain("model", {.usages = mr::known_usages, .pins = true}), memory_(memory) {}

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options&) override {
    memory_.pin(memory.size());
    return {.local_key = 1, .address = reinterpret_cast<std::uintptr_t>(memory.data()), .handle = memory.data()};
  }
  void do_deregister(mr::registration&) noexcept override {}
  model_memory& memory_;
};

// Keeps the compiler from leaving out what it can see through.
void use(void* memory) noexcept { asm volatile("" : : "g"(memory) : "memory"); }

// ---- what is counted ----

void pool_allocate(std::uint64_t count) {
  run([count]() -> task<> {
    mr::pool pool(std::make_shared<plain_domain>(false));
    {
      const mr::buffer first = co_await pool.allocate(message_bytes);  // makes the arena
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const mr::buffer item = co_await pool.allocate(message_bytes);
      use(item.data());
    }
  });
}

void pool_try_allocate(std::uint64_t count) {
  run([count]() -> task<> {
    mr::pool pool(std::make_shared<plain_domain>(false));
    { const mr::buffer first = co_await pool.allocate(message_bytes); }
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::optional<mr::buffer> item = pool.try_allocate(message_bytes);
      use(item->data());
    }
  });
}

void with_malloc(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    void* const item = std::malloc(message_bytes);
    use(item);
    std::free(item);
  }
}

void cache_lease(std::uint64_t count) {
  constexpr std::size_t regions = 1000;
  run([count]() -> task<> {
    mr::cache cache(*std::make_shared<plain_domain>(false));
    std::vector<std::byte> memory(regions * message_bytes);
    const auto range = [&](std::size_t index) {
      return std::span(memory).subspan(index * message_bytes, message_bytes);
    };
    for (std::size_t i = 0; i < regions; ++i) {
      const mr::lease held = co_await cache.lease(range(i), mr::usage::send);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const mr::lease held = co_await cache.lease(range(i * 617 % regions), mr::usage::send);
      use(held.bytes().data());
    }
  });
}

// ---- what is timed ----

double seconds_since(wall::time_point from) { return std::chrono::duration<double>(wall::now() - from).count(); }

double nanoseconds_of(void (*what)(std::uint64_t)) {
  constexpr std::uint64_t rounds = 300'000;
  const auto best_of_five = [what](std::uint64_t count) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto start = wall::now();
      what(count);
      best = std::min(best, seconds_since(start));
    }
    return best;
  };
  const double setting_up = best_of_five(1);
  return (best_of_five(rounds) - setting_up) * 1e9 / static_cast<double>(rounds);
}

/// What a registration took, and how long the turns of the executor were meanwhile.
struct turns {
  double seconds = 0;  // of the registration
  double longest = 0;
  std::uint64_t count = 0;
};

enum class way { inline_call, one_worker, many_workers };

turns registration(mr::domain& home, std::span<std::byte> memory, way how, system_calls* calls = nullptr) {
  constexpr std::size_t four = 4;
  worker_pool workers(four);
  executor_options with_workers = sleeping();
  with_workers.workers = &workers;
  const mr::registration_options options{.usage = mr::usage::recv, .system_calls = calls};
  turns seen;
  run(
      [&]() -> task<> {
        bool done = false;
        const auto watch = [&]() -> task<> {
          auto last = wall::now();
          while (!done) {
            co_await yield();
            seen.longest = std::max(seen.longest, seconds_since(last));
            last = wall::now();
            ++seen.count;
          }
        };
        const auto body = [&](scope& children) -> task<> {
          children.spawn(watch());
          co_await yield();
          const auto start = wall::now();
          const auto work = [&] { static_cast<void>(home.register_now(memory, options)); };
          if (how == way::many_workers) {
            const mr::region made = co_await home.register_memory(memory, options);
            seen.seconds = seconds_since(start);
          } else if (how == way::one_worker) {
            co_await offload(work);
            seen.seconds = seconds_since(start);
          } else {
            work();
            seen.seconds = seconds_since(start);
          }
          done = true;
        };
        co_await with_scope(on_failure::stop_siblings, body);
      },
      with_workers);
  return seen;
}

turns real_registration(std::size_t bytes, way how) {
  const auto home = std::make_shared<plain_domain>(true);
  const address_space space(bytes);
  return registration(*home, space.bytes(), how);
}

turns modelled_registration(std::size_t bytes, way how) {
  model_memory memory;
  const auto home = std::make_shared<model_domain>(memory);
  const address_space space(bytes);
  return registration(*home, space.bytes(), how, &memory);
}

void print(const char* name, const turns& item, std::size_t bytes, const char* end) {
  fmt::print("    \"{}\": {{\"mebibytes_per_second\": {:.0f}, \"longest_turn_ms\": {:.2f}, \"turns\": {}}}{}\n", name,
             static_cast<double>(bytes) / static_cast<double>(mebibyte) / item.seconds, item.longest * 1e3, item.count,
             end);
}

int write_report(std::size_t bytes, std::size_t modelled_bytes) {
  fmt::print("{{\n  \"nanoseconds\": {{\n");
  fmt::print("    \"pool_allocate\": {:.1f},\n    \"pool_try_allocate\": {:.1f},\n", nanoseconds_of(pool_allocate),
             nanoseconds_of(pool_try_allocate));
  fmt::print("    \"cache_lease\": {:.1f},\n", nanoseconds_of(cache_lease));
  fmt::print("    \"malloc\": {:.1f}\n  }},\n", nanoseconds_of(with_malloc));

  // A machine may have to find pages for its guest when that touches them first.
  static_cast<void>(real_registration(bytes, way::many_workers));
  fmt::print("  \"registration_of_bytes\": {},\n  \"registration\": {{\n", bytes);
  print("inline", real_registration(bytes, way::inline_call), bytes, ",");
  print("on_a_worker", real_registration(bytes, way::one_worker), bytes, ",");
  print("populated_by_workers_first", real_registration(bytes, way::many_workers), bytes, "");

  fmt::print("  }},\n  \"modelled_bytes\": {},\n  \"modelled_registration\": {{\n", modelled_bytes);
  print("on_a_worker", modelled_registration(modelled_bytes, way::one_worker), modelled_bytes, ",");
  print("populated_by_workers_first", modelled_registration(modelled_bytes, way::many_workers), modelled_bytes, "");

  // Of what a class holds: its smallest member, and the mean over all that it is for.
  fmt::print("  }},\n  \"waste\": [\n");
  constexpr std::size_t last = mr::detail::class_of(mebibyte);
  for (std::size_t index = 0; index <= last; ++index) {
    const auto block = static_cast<double>(mr::detail::class_bytes(index));
    const double least = index == 0 ? 1 : static_cast<double>(mr::detail::class_bytes(index - 1) + 1);
    fmt::print("    {{\"block_bytes\": {:.0f}, \"most\": {:.3f}, \"mean\": {:.3f}}}{}\n", block, 1 - least / block,
               1 - (least + block) / 2 / block, index == last ? "" : ",");
  }
  fmt::print("  ]\n}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 4 && std::string_view(argv[1]) == "report")
    return write_report(std::strtoull(argv[2], nullptr, 10) * mebibyte, std::strtoull(argv[3], nullptr, 10) * mebibyte);
  const bench::cases known = {
      {"cache_lease", cache_lease},
      {"malloc", with_malloc},
      {"pool_allocate", pool_allocate},
      {"pool_try_allocate", pool_try_allocate},
  };
  return bench::run_case(argc, argv, known, " | report MEBIBYTES MEBIBYTES_OF_MODEL");
} catch (const std::exception& why) {
  std::fprintf(stderr, "memory_cost: %s\n", why.what());
  return 1;
}

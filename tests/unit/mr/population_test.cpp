// SPDX-License-Identifier: Apache-2.0
// Where a device pins, workers make the pages of large memory ready, and nothing of it happens on the executor's
// thread.
#include <weft/mr/cache.hpp>
#include <weft/mr/porting/porting.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/system/page.hpp>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <csignal>
#include <map>

#include "../../sim/loose_task.hpp"
#include "kit/address_space.hpp"
#include "kit/disk_file.hpp"
#include "kit/failure.hpp"
#include "kit/held_workers.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::address_space;
using test::recording_domain;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// The kernel's memory advice, written down and not given.
class noted_advice final : public system_calls {
 public:
  int madvise(void* address, std::size_t length, int advice) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (std::this_thread::get_id() == forbidden) called_from_forbidden = true;
      if (advice == MADV_POPULATE_WRITE) written = true;
      auto& ranges = advice == MADV_HUGEPAGE ? huge : populated;
      ranges.emplace(static_cast<std::byte*>(address), length);
    }
    while_advising();
    return failure;
  }

  std::thread::id forbidden;
  bool called_from_forbidden = false;
  bool written = false;
  int failure = 0;
  std::map<std::byte*, std::size_t> huge;
  std::map<std::byte*, std::size_t> populated;
  std::function<void()> while_advising = [] {};

 private:
  std::mutex mutex_;
};

bool resident(std::span<std::byte> range) {
  std::vector<unsigned char> pages(range.size() / 4096);
  EXPECT_EQ(::mincore(range.data(), range.size(), pages.data()), 0);
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

std::shared_ptr<recording_domain> pinning_domain() {
  auto abilities = recording_domain::everything;
  abilities.pins = true;
  return std::make_shared<recording_domain>(abilities);
}

class population_test : public ::testing::Test {
 protected:
  [[nodiscard]] registration_options options() {
    registration_options wanted{.usage = usage::send};
    wanted.system_calls = &kernel;
    return wanted;
  }
  task<> register_all(std::span<std::byte> memory, registration_options wanted) {
    region made = co_await domain->register_memory(memory, wanted);
    co_await made.release();
  }

  /// Whether the pieces noted are exactly `range`, but for what lies in the same pages.
  static bool cover(const std::map<std::byte*, std::size_t>& pieces, std::span<std::byte> range) {
    std::byte* at = pieces.empty() ? nullptr : pieces.begin()->first;
    if (at > range.data() || range.data() - at >= 4096) return false;
    for (const auto& [from, length] : pieces) {
      if (from > at) return false;
      at = from + length;
    }
    return at >= range.data() + range.size() && at - (range.data() + range.size()) < 4096;
  }

  noted_advice kernel;
  std::shared_ptr<recording_domain> domain = pinning_domain();
};

TEST_F(population_test, provides_every_page_in_pieces_on_workers_before_the_device_is_asked) {
  const address_space space(100 * mebibyte);
  const auto memory = space.bytes().subspan(5000, 90 * mebibyte + 7);
  kernel.forbidden = std::this_thread::get_id();
  bool all_there = false;
  domain->while_registering = [&] { all_there = cover(kernel.populated, memory); };
  test::run([&]() { return register_all(memory, options()); });
  EXPECT_TRUE(all_there);
  for (const auto& [from, length] : kernel.populated) EXPECT_LE(length, detail::population::call_bytes);
  EXPECT_FALSE(kernel.called_from_forbidden);
  for (const auto& [from, length] : kernel.huge) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from) % (2 * mebibyte), 0u);
    EXPECT_EQ(length % (2 * mebibyte), 0u);
    EXPECT_GE(from, memory.data());
    EXPECT_LE(from + length, memory.data() + memory.size());
  }
}

TEST_F(population_test, provides_the_pages_of_every_range_of_several) {
  const address_space space(20 * mebibyte);
  const std::span<std::byte> ranges[] = {space.bytes().subspan(4096, 3 * mebibyte),
                                         space.bytes().subspan(8 * mebibyte, 2 * mebibyte)};
  class many final : public mr::domain {
   public:
    many() : mr::domain("many", {.usages = known_usages, .max_ranges = 2, .pins = true}) {}

   private:
    registration do_register(std::span<std::byte>, const registration_options&) override { return {}; }
    registration do_register_ranges(std::span<const std::span<std::byte>>, const registration_options&) override {
      return {};
    }
    void do_deregister(registration&) noexcept override {}
  };
  const auto home = std::make_shared<many>();
  test::run([&]() -> task<> {
    region made = co_await home->register_memory(ranges, options());
    co_await made.release();
  });
  const auto second = kernel.populated.lower_bound(ranges[1].data());
  EXPECT_TRUE(cover({kernel.populated.begin(), second}, ranges[0]));
  EXPECT_TRUE(cover({second, kernel.populated.end()}, ranges[1]));
}

TEST_F(population_test, is_for_what_is_pinned_and_large_alone) {
  const address_space space(8 * mebibyte);
  test::run([&]() -> task<> {
    co_await register_all(space.bytes().first(4 * mebibyte - 1), options());
    auto on_demand = options();
    on_demand.on_demand = true;
    co_await register_all(space.bytes(), on_demand);
    auto of_device = options();
    of_device.dmabuf = 3;
    co_await register_all(space.bytes(), of_device);
    const auto not_pinning = std::make_shared<recording_domain>();
    region made = co_await not_pinning->register_memory(space.bytes(), options());
    co_await made.release();
  });
  EXPECT_TRUE(kernel.populated.empty());
  test::run([&]() { return register_all(space.bytes().first(4 * mebibyte), options()); });
  EXPECT_TRUE(cover(kernel.populated, space.bytes().first(4 * mebibyte)));
}

TEST_F(population_test, of_what_a_usage_only_reads_does_not_write) {
  constexpr usage reading = usage::send | usage::write_src | usage::read_src | usage::flush_visibility;
  const address_space space(4 * mebibyte);
  auto wanted = options();
  wanted.usage = reading;
  test::run([&]() { return register_all(space.bytes(), wanted); });
  EXPECT_TRUE(cover(kernel.populated, space.bytes()));
  EXPECT_FALSE(kernel.written);
  for (const usage writing : {usage::recv, usage::read_dst, usage::write_dst, usage::atomic_dst, usage::bind_window}) {
    kernel.written = false;
    wanted.usage = reading | writing;
    test::run([&]() { return register_all(space.bytes(), wanted); });
    EXPECT_TRUE(kernel.written) << to_string(writing);
  }
}

/// Blocks of the disk that it has been given: none while it is one hole.
blkcnt_t blocks_of(const test::disk_file& file) {
  struct stat now {};
  EXPECT_EQ(::fstat(file.descriptor(), &now), 0);
  return now.st_blocks;
}

TEST_F(population_test, for_sending_leaves_the_holes_of_a_file) {
  const test::disk_file read_by_hand(8 * mebibyte);
  const mapping read = read_by_hand.mapped(8 * mebibyte);
  for (std::size_t i = 0; i < read.size(); i += 4096) {
    static_cast<void>(*static_cast<volatile std::byte*>(&read.data()[i]));
  }
  if (blocks_of(read_by_hand) != 0) GTEST_SKIP() << "reading fills the holes of a file here, as on a tmpfs";
  const test::disk_file file(8 * mebibyte);
  const mapping sent = file.mapped(8 * mebibyte);
  test::run([&]() { return register_all({sent.data(), sent.size()}, {.usage = usage::send}); });
  EXPECT_EQ(blocks_of(file), 0);
}

TEST_F(population_test, of_memory_that_may_only_be_read_is_for_sending_possible) {
  const address_space space(8 * mebibyte);
  ASSERT_EQ(::mprotect(space.bytes().data(), space.bytes().size(), PROT_READ), 0);
  bool there = false;
  domain->while_registering = [&] { there = resident(space.bytes()); };
  test::run([&]() { return register_all(space.bytes(), {.usage = usage::send}); });
  EXPECT_TRUE(there);
}

TEST_F(population_test, comes_before_a_refresh_and_before_peers_are_let_in) {
  const address_space space(8 * mebibyte);
  const auto home =
      std::make_shared<recording_domain>(domain_capabilities{.usages = known_usages, .disabled = true, .pins = true});
  auto wanted = options();
  wanted.usage = usage::write_dst;
  wanted.disabled = true;
  test::run([&]() -> task<> {
    region made = co_await home->register_memory(space.bytes(), wanted);
    home->while_registering = [&] { EXPECT_TRUE(cover(kernel.populated, space.bytes())); };
    kernel.populated.clear();
    co_await porting::enable(made);
    kernel.populated.clear();
    co_await porting::refresh(made);
    co_await made.release();
  });
  EXPECT_EQ(home->registered, 3);
}

TEST_F(population_test, comes_before_the_registration_that_a_cache_makes) {
  const address_space space(8 * mebibyte);
  bool there = false;
  domain->while_registering = [&] { there = resident(space.bytes()); };
  test::run([&]() -> task<> {
    cache kept(*domain);
    const lease held = co_await kept.lease(space.bytes(), usage::send);
  });
  EXPECT_TRUE(there);
}

TEST_F(population_test, that_the_kernel_refuses_leaves_it_to_the_registration) {
  const address_space space(8 * mebibyte);
  kernel.failure = -EINVAL;
  test::run([&]() { return register_all(space.bytes(), options()); });
  EXPECT_EQ(domain->registered, 1);
}

TEST_F(population_test, tells_how_far_it_has_come) {
  const address_space space(100 * mebibyte);
  std::atomic<std::size_t> progress{0};
  auto wanted = options();
  wanted.progress = &progress;
  std::size_t at_registration = 0;
  domain->while_registering = [&] { at_registration = progress; };
  test::run([&]() { return register_all(space.bytes(), wanted); });
  EXPECT_EQ(at_registration, 100 * mebibyte);
}

TEST_F(population_test, can_be_broken_off_between_two_pieces) {
  const address_space space(1024 * mebibyte);
  test::held_first piece;
  kernel.while_advising = [&] { piece.pass(); };
  std::error_code stopped;
  test::run([&]() -> task<> {
    const auto work = [&]() -> task<> { stopped = co_await test::code_of(register_all(space.bytes(), options())); };
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(work());
      while (!piece.is_there()) co_await yield();
      children.request_stop();
      piece.let_go();
    });
  });
  EXPECT_EQ(stopped, errc::canceled);
  EXPECT_EQ(domain->registered, 0);
  EXPECT_LT(kernel.populated.size(), space.bytes().size() / detail::population::call_bytes);
}

sim::loose_task register_loosely(mr::domain& domain, std::span<std::byte> memory, registration_options wanted) {
  const region made = co_await domain.register_memory(memory, wanted);
}

// The memory goes with the frame.
TEST_F(population_test, is_waited_for_by_a_frame_that_is_destroyed) {
  test::held_workers workers;
  executor home({.workers = &workers});
  const auto root = [&]() -> task<> {
    const address_space space(100 * mebibyte);
    const auto registering = register_loosely(*domain, space.bytes(), options());
    workers.hold_next_until_waited_for();
    registering.start(home);
    while (!workers.hold_it() || !registering.at_rest()) co_await yield();
  };
  home.run(root());
  EXPECT_FALSE(workers.hold_it());
  EXPECT_EQ(domain->registered, 0);
}

TEST_F(population_test, of_a_submission_is_broken_off_when_its_handle_goes) {
  const address_space space(1024 * mebibyte);
  test::held_first piece;
  kernel.while_advising = [&] { piece.pass(); };
  test::run([&]() -> task<> {
    porting::event_queue queue;
    auto pending = porting::submit(*domain, space.bytes(), options(), queue, nullptr);
    piece.wait();
    pending = porting::pending_region();
    piece.let_go();
    const auto event = co_await queue.next();
    EXPECT_EQ(event.outcome.error().code(), errc::canceled);
  });
  EXPECT_EQ(domain->registered, 0);
  EXPECT_LE(kernel.populated.size(), detail::population::piece_bytes / detail::population::call_bytes);
}

// ---- what the kernel itself says about it ----

volatile std::sig_atomic_t forbidden_calls = 0;

/// From now on this thread, and those that it starts, are told by SIGSYS of calls that register or populate memory.
void forbid_here() {
  struct sigaction noting {};
  noting.sa_handler = [](int) { forbidden_calls = forbidden_calls + 1; };
  ASSERT_EQ(::sigaction(SIGSYS, &noting, nullptr), 0);
  constexpr auto offset = [](std::size_t member) { return static_cast<std::uint32_t>(member); };
  constexpr std::uint32_t trap = SECCOMP_RET_TRAP;
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset(offsetof(seccomp_data, nr))),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mlock, 7, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mlock2, 6, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 5, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 5),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset(offsetof(seccomp_data, args[2]))),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 2, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_READ, 1, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_HUGEPAGE, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, trap),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(population, of_a_gibibyte_takes_no_system_call_on_the_executors_thread) {
  constexpr std::size_t threads = 4;
  // All workers start here, where nothing is forbidden. What they start with is there until they have gone.
  struct start final : weft::detail::worker_job {
    explicit start(std::latch& all) : all_(all) {}
    void run() noexcept override { all_.arrive_and_wait(); }
    std::latch& all_;
  };
  std::latch all(threads + 1);
  std::array<start, threads> starts{start(all), start(all), start(all), start(all)};
  worker_pool workers(threads);
  for (start& each : starts) workers.submit(each);
  all.arrive_and_wait();

  const auto domain = pinning_domain();
  domain->while_registering = [] { static_cast<void>(::ioctl(-1, 0)); };  // as ibv_reg_mr(3) does it
  const address_space space(1024 * mebibyte);
  std::thread filtered([&] {
    executor home({.workers = &workers});
    forbid_here();
    home.run([&]() -> task<> {
      region made = co_await domain->register_memory(space.bytes(), {.usage = usage::send});
      co_await made.release();
    }());
    EXPECT_EQ(forbidden_calls, 0);
    static_cast<void>(::madvise(space.bytes().data(), 4096, MADV_POPULATE_WRITE));
    static_cast<void>(::madvise(space.bytes().data(), 4096, MADV_POPULATE_READ));
    static_cast<void>(::ioctl(-1, 0));
    EXPECT_EQ(forbidden_calls, 3) << "the filter does not see what it is to forbid";
  });
  filtered.join();
  EXPECT_EQ(domain->registered, 1);
  EXPECT_TRUE(resident(space.bytes().subspan(700 * mebibyte, 4096))) << "the pages were not provided";
}

}  // namespace
}  // namespace weft::mr

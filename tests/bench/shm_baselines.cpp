// SPDX-License-Identifier: Apache-2.0
// What `./dev bench shm` measures weft against: what two processes of one machine can do with nothing but memcpy and
// the kernel's ways to wake each other.
//
//   shm_baselines WHAT SECONDS OUR_CORE ITS_CORE    prints JSON
//
//   memcpy      1 MiB from one buffer to another, in one process
//   one_copy    1 MiB into memory that the other process has mapped, and does not look at
//   two_copies  one process copies into 1 MiB of shared memory, the other out of it, both at the same time: each fills
//               or empties pieces of 64 KiB of a ring
//   eventfd     round trips between two processes that sleep in read(2)
//   futex       the same through FUTEX_WAKE and FUTEX_WAIT
#include <fmt/core.h>

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "kit/standard.hpp"
#include <perf/histogram.hpp>

namespace {

using clock_type = std::chrono::steady_clock;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t piece = std::size_t{64} << 10;
constexpr std::size_t pieces = mib / piece;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

/// What both processes have.
struct shared_memory {
  alignas(64) std::atomic<std::uint64_t> written{0};  ///< pieces, by us
  alignas(64) std::atomic<std::uint64_t> taken{0};    ///< pieces, by the other process
  alignas(64) std::atomic<std::uint32_t> turn{0};     ///< of the futex: odd is the other process's
  alignas(64) std::array<std::byte, mib> data;
};

shared_memory& map_shared() {
  void* const at = ::mmap(nullptr, sizeof(shared_memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("mmap");
  auto* const made = new (at) shared_memory;
  made->data.fill(std::byte{1});
  return *made;
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

/// The other process, as long as this lives.
class other_process : private weft::test::immovable {
 public:
  template <class Work>
  other_process(int core, const Work& work) : id_(::fork()) {
    if (id_ < 0) fail("fork");
    if (id_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay_on(core);
    while (true) work();
  }
  ~other_process() {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }

 private:
  pid_t id_;
};

// A copy whose result nobody uses is still made.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
  asm volatile("" : : "r"(to) : "memory");
}

/// Each of `work` is timed, of the first tenth of a second none.
template <class Work>
void measure(clock_type::duration time, const Work& work) {
  for (const auto end = clock_type::now() + std::chrono::milliseconds(100); clock_type::now() < end;) work();
  perf::histogram times;
  const auto start = clock_type::now();
  auto begin = start;
  while (begin < start + time) {
    work();
    const auto done = clock_type::now();
    times.record(done - begin);
    begin = done;
  }
  const double seconds = std::chrono::duration<double>(begin - start).count();
  fmt::print(R"({{"operations": {}, "seconds": {}, "p50_ns": {}, "mean_ns": {}}}{})", times.count(), seconds,
             times.percentile(50), seconds * 1e9 / static_cast<double>(times.count()), '\n');
}

/// What a measurement is told.
struct conditions {
  clock_type::duration time;
  int other_core;
};

void measure_memcpy(const conditions& how) {
  const std::vector<std::byte> from(mib, std::byte{1});
  std::vector<std::byte> to(mib);
  measure(how.time, [&] { copy_bytes(to.data(), from.data(), mib); });
}

void measure_one_copy(const conditions& how) {
  shared_memory& both = map_shared();
  const std::vector<std::byte> from(mib, std::byte{1});
  const other_process other(how.other_core, [] { ::pause(); });
  measure(how.time, [&] { copy_bytes(both.data.data(), from.data(), mib); });
}

void measure_two_copies(const conditions& how) {
  shared_memory& both = map_shared();
  const std::vector<std::byte> from(mib, std::byte{1});
  std::vector<std::byte> to(mib);
  std::uint64_t taken = 0;
  const other_process other(how.other_core, [&] {
    while (both.written.load(std::memory_order_acquire) == taken) {
    }
    const std::size_t at = taken % pieces * piece;
    copy_bytes(to.data() + at, both.data.data() + at, piece);
    both.taken.store(++taken, std::memory_order_release);
  });
  std::uint64_t written = 0;
  measure(how.time, [&] {
    for (std::size_t i = 0; i < pieces; ++i) {
      while (written - both.taken.load(std::memory_order_acquire) == pieces) {
      }
      const std::size_t at = written % pieces * piece;
      copy_bytes(both.data.data() + at, from.data() + at, piece);
      both.written.store(++written, std::memory_order_release);
    }
  });
}

void wait_for(int fd) {
  std::uint64_t count = 0;
  if (::read(fd, &count, sizeof count) != sizeof count) fail("read");
}

void wake(int fd) {
  const std::uint64_t one = 1;
  if (::write(fd, &one, sizeof one) != sizeof one) fail("write");
}

void measure_eventfd(const conditions& how) {
  const int there = ::eventfd(0, EFD_CLOEXEC);
  const int back = ::eventfd(0, EFD_CLOEXEC);
  if (there < 0 || back < 0) fail("eventfd");
  const other_process other(how.other_core, [&] {
    wait_for(there);
    wake(back);
  });
  measure(how.time, [&] {
    wake(there);
    wait_for(back);
  });
}

void wait_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  while (word.load(std::memory_order_acquire) == value) {
    ::syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
  }
}

void give(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.store(value, std::memory_order_release);
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void measure_futex(const conditions& how) {
  shared_memory& both = map_shared();
  const other_process other(how.other_core, [&] {
    wait_while(both.turn, 0);
    give(both.turn, 0);
  });
  measure(how.time, [&] {
    give(both.turn, 1);
    wait_while(both.turn, 1);
  });
}

struct row {
  std::string_view name;
  void (*run)(const conditions& how);
};

constexpr std::array rows{row{"memcpy", measure_memcpy}, row{"one_copy", measure_one_copy},
                          row{"two_copies", measure_two_copies}, row{"eventfd", measure_eventfd},
                          row{"futex", measure_futex}};

}  // namespace

int main(int argc, char** argv) try {
  for (const row& what : rows) {
    if (argc != 5 || what.name != argv[1]) continue;
    const std::chrono::duration<double> time(std::stod(argv[2]));
    stay_on(std::stoi(argv[3]));
    what.run({.time = std::chrono::duration_cast<clock_type::duration>(time), .other_core = std::stoi(argv[4])});
    return 0;
  }
  fmt::print(stderr, "usage: shm_baselines memcpy|one_copy|two_copies|eventfd|futex SECONDS OUR_CORE ITS_CORE\n");
  return 2;
} catch (const std::exception& why) {
  fmt::print(stderr, "shm_baselines: {}\n", why.what());
  return 1;
}

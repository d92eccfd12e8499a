// SPDX-License-Identifier: Apache-2.0
#include "trial.hpp"

#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>

namespace weft::stress {
namespace {

constexpr int check_failed = 3;

/// Ends the process with SIGALRM after a time; shortly before, SIGUSR1 has an executor of sockets say what it waits
/// for.
class deadline_guard {
 public:
  explicit deadline_guard(std::chrono::seconds limit) {
    ::alarm(static_cast<unsigned>(limit.count()));
    sigset_t asked;  // it is for the executor, and no other thread may take it
    ::sigemptyset(&asked);
    ::sigaddset(&asked, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &asked, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) throw system_error(errno, "timer_create(2)");
    itimerspec time{};
    time.it_value.tv_sec = std::max<time_t>(limit.count() - 1, 1);
    ::timer_settime(timer_, 0, &time, nullptr);
  }
  deadline_guard(const deadline_guard&) = delete;
  deadline_guard& operator=(const deadline_guard&) = delete;
  ~deadline_guard() {
    ::timer_delete(timer_);
    ::alarm(0);
  }

 private:
  timer_t timer_{};
};

/// What parent and child share.
struct board {
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> seeds{0};
  std::atomic<std::uint64_t> call{0};
  std::atomic<std::uint64_t> events{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> nanoseconds{0};
  std::array<char, 16'384> words{};
};

class shared_board {
 public:
  shared_board() {
    void* const memory = ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw system_error(errno, "map memory to share with a child");
    board_ = new (memory) board;
  }
  shared_board(const shared_board&) = delete;
  shared_board& operator=(const shared_board&) = delete;
  ~shared_board() { ::munmap(board_, sizeof(board)); }
  board* operator->() const noexcept { return board_; }

 private:
  board* board_;
};

/// A file without a name for what a child writes to its standard error stream.
class last_words {
 public:
  last_words() : fd_(::memfd_create("last words", MFD_CLOEXEC)) {
    if (fd_ < 0) throw system_error(errno, "memfd_create(2)");
  }
  last_words(const last_words&) = delete;
  last_words& operator=(const last_words&) = delete;
  ~last_words() { ::close(fd_); }
  void take_standard_error() const noexcept { ::dup2(fd_, STDERR_FILENO); }
  [[nodiscard]] std::string read() const {
    std::string text(6000, '\0');
    const ssize_t count = ::pread(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  int fd_;
};

sim::outcome play_here(const sim::script& what, std::chrono::seconds limit, board& shared,
                       sim::fabric where = sim::fabric::simulated) {
  const std::function<void(const std::string&)> give_up = [&shared](const std::string& why) {
    std::memcpy(shared.words.data(), why.data(), std::min(why.size(), shared.words.size() - 1));
    std::_Exit(check_failed);
  };
  shared.seed = what.seed;
  const deadline_guard guard(limit);
  const sim::outcome done = sim::play(what, give_up, where);
  shared.seeds.fetch_add(1);
  shared.events.fetch_add(done.events);
  shared.operations.fetch_add(done.operations);
  shared.failures.fetch_add(done.failures);
  shared.nanoseconds.fetch_add(static_cast<std::uint64_t>(done.time.count()));
  return done;
}

std::string words_of(int status, const board& shared, const last_words& said) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == check_failed) return shared.words.data();
  std::string death = WIFSIGNALED(status) ? fmt::format("died of signal {} ({})", WTERMSIG(status),
                                                        WTERMSIG(status) == SIGALRM ? "it took too long"
                                                                                    : ::strsignal(WTERMSIG(status)))
                                          : fmt::format("exited with {}", WEXITSTATUS(status));
  return death + "\n" + said.read();
}

verdict in_a_child(const shared_board& shared, const std::function<void()>& body) {
  const last_words said;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw system_error(errno, "fork(2)");
  if (child == 0) {
    said.take_standard_error();
    // Large blocks come and go with every run: kept, they need not be mapped anew, see mallopt(3).
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
    ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
    body();
    std::exit(0);  // with what sanitizers say of leaks
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  verdict how;
  how.seed = shared->seed;
  how.failed = status != 0;
  if (how.failed) how.why = words_of(status, *shared.operator->(), said);
  return how;
}

}  // namespace

sim::script make_script(std::uint64_t seed, sim::fabric where) {
  sim::script made = sim::make_script(seed);
  if (where != sim::fabric::sockets) return made;
  made.failing_mappings = made.failing_accepts = 0;
  for (sim::meeting_plan& one : made.meetings) one.faults.clear();
  return made;
}

verdict try_seeds(std::uint64_t first, std::uint64_t count, std::chrono::seconds limit, tally& sum, sim::fabric where) {
  const shared_board shared;
  const verdict how = in_a_child(shared, [&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      static_cast<void>(play_here(make_script(first + i, where), limit, *shared.operator->(), where));
    }
  });
  sum.seeds += shared->seeds;
  sum.events += shared->events;
  sum.operations += shared->operations;
  sum.failures += shared->failures;
  sum.virtual_time += std::chrono::nanoseconds(shared->nanoseconds);
  return how;
}

verdict try_each_call(sim::script& what, std::chrono::seconds limit, tally& sum, sim::fabric where) {
  const shared_board shared;
  const verdict how = in_a_child(shared, [&] {
    what.failing_call = 0;
    const std::uint64_t calls = play_here(what, limit, *shared.operator->(), where).calls;
    for (std::uint64_t number = 1; number <= calls; ++number) {
      what.failing_call = number;
      shared->call = number;
      static_cast<void>(play_here(what, limit, *shared.operator->(), where));
    }
  });
  what.failing_call = shared->call;
  sum.seeds += shared->seeds;
  return how;
}

verdict try_script(const sim::script& what, std::chrono::seconds limit, sim::fabric where) {
  const shared_board shared;
  return in_a_child(shared, [&] { static_cast<void>(play_here(what, limit, *shared.operator->(), where)); });
}

}  // namespace weft::stress

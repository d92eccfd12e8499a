// SPDX-License-Identifier: Apache-2.0
#include "trial.hpp"

#include <fmt/core.h>

#include <malloc.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "child.hpp"

namespace weft::stress {
namespace {

/// Ends the process with SIGALRM after a time; shortly before, SIGUSR1 has an executor of sockets say what it waits
/// for.
class deadline_guard : private test::immovable {
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
  ~deadline_guard() {
    ::timer_delete(timer_);
    ::alarm(0);
  }

 private:
  timer_t timer_{};
};

/// What a child has to say. Its parent reads it once the child has ended, in whatever way.
struct board {
  std::atomic<std::uint64_t> seed{0};  // that it is at
  std::atomic<std::uint64_t> call{0};
  tally sum;
  last_sentence words{};
};

sim::outcome play_here(const sim::script& what, std::chrono::seconds limit, board& shared,
                       const sim::setting& where = {}) {
  const std::function<void(const std::string&)> give_up = [&shared](const std::string& why) {
    leave_words(shared.words, why);
    std::_Exit(check_failed);
  };
  shared.seed = what.seed;
  const deadline_guard guard(limit);
  return sim::play(what, give_up, where);
}

void add_to(tally& sum, const sim::outcome& done) {
  ++sum.seeds;
  sum.events += done.events;
  sum.operations += done.operations;
  sum.failures += done.failures;
  sum.stopped += done.stopped;
  sum.faults += done.faults;
  sum.virtual_time += done.time;
}

verdict in_a_child(const shared_memory<board>& shared, const std::function<void()>& body) {
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
  verdict how{.failed = status != 0, .seed = shared->seed};
  if (how.failed) how.why = words_of(status, shared->words, said);
  return how;
}

}  // namespace

std::string words_of(int status, const last_sentence& said, const last_words& wrote) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == check_failed) return said.data();
  std::string death = WIFSIGNALED(status) ? fmt::format("died of signal {} ({})", WTERMSIG(status),
                                                        WTERMSIG(status) == SIGALRM ? "it took too long"
                                                                                    : ::strsignal(WTERMSIG(status)))
                                          : fmt::format("exited with {}", WEXITSTATUS(status));
  return death + "\n" + wrote.read();
}

sim::script make_script(std::uint64_t seed, const sim::setting& where) {
  sim::script made = sim::make_script(seed);
  if (where.where == sim::fabric::simulated_rails) sim::give_rails(made);
  if (where.where != sim::fabric::real) return made;
  made.failing_mappings = made.failing_accepts = 0;
  for (sim::meeting_plan& one : made.meetings) one.faults.clear();
  return made;
}

sim::script make_small_script(std::uint64_t seed, const sim::setting& where) {
  sim::script made = sim::make_small_script(seed);
  if (where.where != sim::fabric::simulated_rails) return made;
  sim::give_rails(made);
  for (sim::meeting_plan& one : made.meetings) one.faults.clear();
  return made;
}

verdict try_seeds(std::uint64_t first, std::uint64_t count, std::chrono::seconds limit, tally& sum,
                  const sim::setting& where) {
  const shared_memory<board> shared;
  shared->sum = sum;
  const verdict how = in_a_child(shared, [&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      add_to(shared->sum, play_here(make_script(first + i, where), limit, *shared, where));
    }
  });
  sum = shared->sum;
  return how;
}

verdict try_each_call(sim::script& what, std::chrono::seconds limit, tally& sum, const sim::setting& where) {
  const shared_memory<board> shared;
  shared->sum = sum;
  const verdict how = in_a_child(shared, [&] {
    what.failing_call = 0;
    const std::uint64_t calls = play_here(what, limit, *shared, where).calls;
    for (std::uint64_t number = 1; number <= calls; ++number) {
      what.failing_call = number;
      shared->call = number;
      add_to(shared->sum, play_here(what, limit, *shared, where));
    }
  });
  what.failing_call = shared->call;
  sum = shared->sum;
  return how;
}

verdict try_script(const sim::script& what, std::chrono::seconds limit, const sim::setting& where) {
  const shared_memory<board> shared;
  return in_a_child(shared, [&] { static_cast<void>(play_here(what, limit, *shared, where)); });
}

}  // namespace weft::stress

// SPDX-License-Identifier: Apache-2.0
#include "two_processes.hpp"

#include <fmt/core.h>

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <system_error>
#include <vector>

#include <common/failure.hpp>

namespace kvcache {
namespace {

void stay_on_core(std::size_t number) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<std::size_t> cores;
  for (std::size_t i = 0; i != CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) cores.push_back(i);
  }
  if (cores.size() < 2) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[number], &one);
  ::sched_setaffinity(0, sizeof one, &one);  // where it may not, the times say less, and nothing else is wrong
}

int exit_code_of(const std::function<void()>& work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::exception& why) {
    fmt::print(stderr, "kvcache: the receiving process: {}\n", why.what());
    return 1;
  }
}

}  // namespace

other_process::other_process(const std::function<void()>& work) : id_(::fork()) {
  if (id_ < 0) throw std::system_error(errno, std::system_category(), "fork");
  if (id_ != 0) {
    stay_on_core(1);
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  stay_on_core(0);
  ::_exit(exit_code_of(work));
}

other_process::~other_process() {
  if (id_ == 0) return;
  ::kill(id_, SIGKILL);
  ::waitpid(id_, nullptr, 0);
}

void other_process::join() {
  int status = 0;
  while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
  }
  id_ = 0;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw common::failure("the receiving process has failed");
}

}  // namespace kvcache

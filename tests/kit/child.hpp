// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace weft::test {

/// Forks; the child does `body` and leaves by _exit() with what that returns, unless it leaves in another way. One that
/// hangs is ended by SIGALRM.
template <class Body>
pid_t fork_for(Body&& body) {
  std::fflush(nullptr);  // or it is written twice
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(20);
  ::_exit(static_cast<int>(body()));
}

/// What a child's end came to: its exit status, or minus the signal that ended it.
inline int end_of(pid_t child) {
  int status = -1;
  EXPECT_GT(child, 0) << "fork(2)";
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
// with_driver io_uring|epoll|io_uring_forbidden PROGRAM [ARGUMENT...]
//
// Runs a test program under one event driver. `io_uring` and `epoll` demand the driver by name; with
// `io_uring_forbidden` nothing is demanded, but the kernel refuses io_uring as it does in many containers, and the
// program has to fall back by itself. Exits with 77, which CTest reports as skipped, where there is no io_uring.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace {

constexpr int skipped = 77;
constexpr int failed = 1;

/// 0, or the errno with which io_uring_setup(2) refuses.
int probe_io_uring() {
  io_uring_params parameters{};
  const long descriptor = ::syscall(SYS_io_uring_setup, 1, &parameters);
  if (descriptor < 0) return errno;
  ::close(static_cast<int>(descriptor));
  return 0;
}

/// Makes io_uring_setup(2) fail with EPERM from here on, in this process and all it becomes; see seccomp(2).
bool forbid_io_uring() {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: with_driver io_uring|epoll|io_uring_forbidden PROGRAM [ARGUMENT...]\n", stderr);
    return failed;
  }
  const std::string_view driver = argv[1];
  if (driver == "io_uring_forbidden") {
    if (!forbid_io_uring() || probe_io_uring() != EPERM) {
      std::fprintf(stderr, "with_driver: cannot forbid io_uring: %s\n", std::strerror(errno));
      return failed;
    }
    ::unsetenv("WEFT_EVENT_DRIVER");
  } else {
    if (const int refused = driver == "io_uring" ? probe_io_uring() : 0; refused != 0) {
      std::printf("this machine refuses io_uring_setup(2): %s\n", std::strerror(refused));
      return skipped;
    }
    ::setenv("WEFT_EVENT_DRIVER", argv[1], 1);
  }
  ::execv(argv[2], argv + 2);
  std::fprintf(stderr, "with_driver: cannot run %s: %s\n", argv[2], std::strerror(errno));
  return failed;
}

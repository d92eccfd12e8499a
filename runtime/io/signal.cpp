// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/io.hpp>
#include <weft/runtime/io/signal.hpp>

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace weft {

signal_set::signal_set(std::initializer_list<int> signals) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : signals) sigaddset(&mask, number);
  const int fd = ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) throw system_error(errno, "create a signalfd");
  descriptor_ = descriptor(fd, system_calls::kernel());
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &mask, &before);
  sigemptyset(&newly_blocked_);
  for (const int number : signals) {
    if (sigismember(&before, number) == 0) sigaddset(&newly_blocked_, number);
  }
}

signal_set::~signal_set() { restore(); }

void signal_set::restore() noexcept {
  ::pthread_sigmask(SIG_UNBLOCK, &newly_blocked_, nullptr);
  sigemptyset(&newly_blocked_);
}

int signal_set::try_next() noexcept {
  signalfd_siginfo info{};
  if (::read(descriptor_.fd(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

task<int> signal_set::next() {
  const auto turn = co_await mutex_.lock();  // one task at a time waits for the descriptor
  for (;;) {
    if (const int number = try_next(); number != 0) co_return number;
    const int result = co_await detail::io_wait(io_kind::readable, descriptor_);
    if (result == -ECANCELED) throw error(errc::canceled, "wait for a signal");
    if (result < 0) throw system_error(-result, "wait for a signal");
  }
}

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#include "fighter.hpp"

#include <fmt/core.h>

#include <sys/prctl.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace weft::stress {

fighter::~fighter() { kill(); }

void fighter::start(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw system_error(errno, "fork(2)");
  if (process_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody else would ever tell it to end
  if (::getppid() != parent) std::_Exit(check_failed);
  wrote_.take_standard_error();
  sigset_t asked;  // for the executor alone
  ::sigemptyset(&asked);
  ::sigaddset(&asked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  int status = check_failed;
  try {
    status = body();
  } catch (const std::exception& why) {
    leave_words(words_, fmt::format("an exception has come out: {}", why.what()));
  }
  std::exit(status);  // with what sanitizers say of leaks
}

void fighter::signal(int number) const {
  if (process_ > 0) ::kill(process_, number);
}

void fighter::kill() {
  signal(SIGKILL);
  static_cast<void>(wait(0));
  status_ = 0;
}

std::string fighter::words() const {
  if (status_ == 0) return "";
  return fmt::format("the {}: {}", name_, words_of(status_, words_, wrote_));
}

std::string fighter::dump() const {
  signal(SIGUSR1);
  ::usleep(1'000'000);
  return wrote_.read();
}

bool fighter::wait(int flags) {
  pid_t found = 0;
  while (process_ > 0 && (found = ::waitpid(process_, &status_, flags)) < 0 && errno == EINTR) {
  }
  if (found == 0) return process_ <= 0;
  process_ = 0;
  return true;
}

}  // namespace weft::stress

// SPDX-License-Identifier: Apache-2.0
#include "fighter.hpp"

#include <fmt/core.h>

#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace weft::stress {

namespace {

constexpr int time_to_report = 10'000;  // milliseconds: sanitizers take theirs to find the names of functions

}  // namespace

fighter::~fighter() {
  signal(SIGKILL);
  static_cast<void>(wait(0));
}

void fighter::start(const std::function<int()>& body) {
  std::fflush(nullptr);
  wrote_.forget();
  words_ = {};
  status_ = 0;
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw system_error(errno, "fork(2)");
  if (process_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody else would ever tell it to end
  ::prctl(PR_SET_NAME, name_);         // for ps(1)
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

std::string fighter::kill(std::size_t excused_bytes) {
  const auto has_written = [&] { return wrote_.size() > excused_bytes; };
  for (int waited = 0; waited < time_to_report && has_written() && !has_ended(); ++waited) ::usleep(1000);
  if (!has_ended()) {
    signal(SIGKILL);
    static_cast<void>(wait(0));
    const bool as_asked = WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL;
    if (as_asked && !has_written()) return "";
    if (as_asked) return fmt::format("the {} was killed after it had written\n{}", name_, wrote_.read());
  }
  return status_ != 0 ? words() : fmt::format("the {} has ended by itself", name_);
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

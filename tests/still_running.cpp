// SPDX-License-Identifier: Apache-2.0
// Every test program names a test that has taken very long, so that one that is killed for its time says where it was.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <ctime>

#include "kit/test.hpp"

namespace {

constexpr time_t very_long_s = 150;  // beyond the limits that tests themselves set to what they wait for

std::array<char, 512> message;

extern "C" void say_it_is_still_running(int /*signal*/) {
  // Nothing can be done where it cannot be said.
  static_cast<void>(!::write(STDERR_FILENO, message.data(), std::strlen(message.data())));
}

/// A timer rather than alarm(2): children that a test forks inherit no timer, and need the alarm for themselves.
class still_running final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    static_cast<void>(std::snprintf(message.data(), message.size(), "still running after %ld s: %s.%s\n",
                                    static_cast<long>(very_long_s), test.test_suite_name(), test.name()));
    struct sigaction action {};
    action.sa_handler = &say_it_is_still_running;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGRTMAX, &action, nullptr);
    sigevent notice{};
    notice.sigev_notify = SIGEV_SIGNAL;
    notice.sigev_signo = SIGRTMAX;
    armed_ = ::timer_create(CLOCK_MONOTONIC, &notice, &timer_) == 0;
    if (!armed_) return;
    itimerspec once{};
    once.it_value.tv_sec = very_long_s;
    ::timer_settime(timer_, 0, &once, nullptr);
  }
  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    if (armed_) ::timer_delete(timer_);
  }

  timer_t timer_{};
  bool armed_ = false;
};

// GoogleTest owns its listeners.
[[maybe_unused]] const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new still_running);
  return true;
}();

}  // namespace

// What the address sanitizer, where there is one, asks before main(); ASAN_OPTIONS has the last word. Where it guesses
// the place of a library's thread-local memory from the bytes before that, the search for leaks at the end of a program
// died once of a place that was none.
extern "C" [[gnu::no_sanitize_address]] const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" [[gnu::no_sanitize_address]] const char* __asan_default_options() { return "intercept_tls_get_addr=0"; }

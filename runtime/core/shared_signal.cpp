// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/fork_guard.hpp>
#include <weft/runtime/core/shared_signal.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>

namespace weft::detail {
namespace {

constinit std::mutex signals_mutex;
struct signal_users {
  unsigned count = 0;
  bool was_blocked = false;
};
constinit std::array<signal_users, 65> users_by_number{};

signal_users& users_of(int number) noexcept {
  return users_by_number[static_cast<std::size_t>(number) % users_by_number.size()];
}

sigset_t mask_of(int number) noexcept {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, number);
  return mask;
}

}  // namespace

shared_signal::shared_signal(int signal) : io_operation(io_kind::readable), signal_(signal) {
  const sigset_t mask = mask_of(signal);
  const int fd = ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) throw system_error(errno, "create a signalfd");
  descriptor_ = descriptor(fd, system_calls::kernel());
  target = &descriptor_;
  if (!unlock_in_children<signals_mutex>()) throw std::bad_alloc();
  const std::lock_guard lock(signals_mutex);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &mask, &before);
  signal_users& users = users_of(signal);
  if (users.count++ == 0) users.was_blocked = sigismember(&before, signal) == 1;
}

shared_signal::~shared_signal() {
  const std::lock_guard lock(signals_mutex);
  signal_users& users = users_of(signal_);
  if (--users.count != 0 || users.was_blocked) return;
  while (try_read()) {  // drops pending signals: once unblocked, they could end the program
  }
  const sigset_t mask = mask_of(signal_);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
}

bool shared_signal::try_read() noexcept {
  signalfd_siginfo info{};
  return ::read(descriptor_.fd(), &info, sizeof info) == sizeof info;
}

void shared_signal::watch(event_driver& driver) noexcept {
  driver_.store(&driver, std::memory_order_relaxed);
  if (!in_progress()) driver.start(*this);
}

void shared_signal::unwatch() noexcept {
  event_driver* const driver = driver_.exchange(nullptr, std::memory_order_relaxed);
  if (!in_progress()) return;
  constexpr std::size_t batch = 64;
  driver->cancel(*this);
  while (in_progress()) driver->wait(batch, std::nullopt);
}

void shared_signal::complete(int result) noexcept {
  event_driver* const driver = driver_.load(std::memory_order_relaxed);
  if (driver == nullptr || result < 0) return;
  if (try_read()) came();
  watch(*driver);
}

}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <csignal>
#include <initializer_list>

namespace weft {

/// Signals as events: until restore() or the destructor, the signals of the set do not interrupt the thread that made
/// it, but wait for next() and try_next(). Make the set before other threads start, because threads that run already
/// would take the signals. Destroy it on the thread that made it. See signalfd(2).
class signal_set {
 public:
  /// Takes over `signals`, such as {SIGINT, SIGTERM}. Throws weft::error if the system refuses a descriptor.
  explicit signal_set(std::initializer_list<int> signals);
  signal_set(const signal_set&) = delete;
  signal_set& operator=(const signal_set&) = delete;
  ~signal_set();

  /// Waits for the next of the signals and yields its number; errc::canceled if stopped. Several tasks of one executor
  /// may wait; each signal goes to one of them, first come, first served.
  task<int> next();
  /// Takes a signal that has come already, and returns its number; 0 if none has come.
  [[nodiscard]] int try_next() noexcept;

  /// Unblocks the signals that the constructor has blocked, as the destructor does: from now on they interrupt the
  /// thread as they did before, and a signal that came but was not taken interrupts it at once. Call on the thread that
  /// made the set.
  void restore() noexcept;

  /// The descriptor that is readable when a signal has come; for an io_operation of your own, while no task waits in
  /// next().
  [[nodiscard]] descriptor& source() noexcept { return descriptor_; }

 private:
  descriptor descriptor_;
  mutex mutex_;             // held by the task that waits in next()
  sigset_t newly_blocked_;  // the signals that this set has blocked, and is to unblock
};

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <csignal>
#include <initializer_list>

namespace weft {

/// Signals as events: while it lives, the named signals no longer interrupt the thread that made it but wait for
/// next(). Make it before other threads start, so that these do not take the signals. See signalfd(2).
class signal_set {
 public:
  /// Throws weft::error. `signals` such as {SIGINT, SIGTERM}.
  explicit signal_set(std::initializer_list<int> signals);
  signal_set(const signal_set&) = delete;
  signal_set& operator=(const signal_set&) = delete;
  ~signal_set();

  /// Waits for the next of the signals and yields its number; errc::canceled if stopped. Several tasks may wait, and
  /// get one each, first come, first served.
  [[nodiscard]] task<int> next();
  /// One that has come already, without waiting; 0: none.
  [[nodiscard]] int try_next() noexcept;

  /// Gives the thread its signals back, as the destructor does: from now on they interrupt it as they did before, one
  /// that nobody has taken at once. Call on the thread that has made the set.
  void restore() noexcept;

  /// Readable when one has come: for an io_operation of one's own.
  [[nodiscard]] descriptor& source() noexcept { return descriptor_; }

 private:
  descriptor descriptor_;
  mutex mutex_;             // of next()
  sigset_t newly_blocked_;  // by this set, and to be unblocked by it
};

}  // namespace weft

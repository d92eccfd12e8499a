// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/as_result.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/task.hpp>

#include <concepts>
#include <csignal>
#include <optional>
#include <utility>

namespace weft {

/// The outcome of run_until_signal().
template <class T>
struct [[nodiscard]] until_signal {
  weft::result<T> result;  ///< the task's result; if it was stopped, usually errc::canceled
  int signal = 0;          ///< the first signal that came; 0 if none came: the result is then a value
};

namespace detail {

/// Waits for signals beside a task, and then asks the task to stop.
class signal_watch {
 public:
  /// `signals` must outlive this object.
  explicit signal_watch(signal_set& signals) noexcept : signals_(signals) {}
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;
  virtual ~signal_watch() = default;

  /// Waits for the first signal, and for a second one if drain() returns true. Then restores the signals, and asks
  /// `tasks` to stop.
  task<> wait(scope& tasks);
  /// The first signal; 0 if none has come.
  [[nodiscard]] int first() const noexcept { return first_; }

 private:
  /// Called at the first signal. True if the second is to stop the task; false if the first is.
  virtual bool drain() { return false; }

  signal_set& signals_;
  int first_ = 0;
};

template <std::invocable Function>
class draining_watch final : public signal_watch {
 public:
  draining_watch(signal_set& signals, Function function) : signal_watch(signals), function_(std::move(function)) {}

 private:
  bool drain() override {
    function_();
    return true;
  }

  Function function_;
};

template <class T>
task<result<T>> run_beside(signal_watch& watch, task<T> work) {
  std::optional<result<T>> ended;
  const auto both = [&](scope& tasks) -> task<> {
    tasks.spawn(watch.wait(tasks), "signals");
    auto attempt = as_result(std::move(work));
    ended.emplace(co_await std::move(attempt));
    tasks.request_stop();
  };
  co_await with_scope(on_failure::stop_siblings, both);
  co_return std::move(*ended);
}

template <class T>
until_signal<T> run_until_signal(executor& home, signal_watch& watch, task<T> work) {
  auto ended = home.run(run_beside(watch, std::move(work)));
  if (watch.first() == 0) static_cast<void>(ended.value());
  return {.result = std::move(ended), .signal = watch.first()};
}

}  // namespace detail

/// Runs `work` on `home` as executor::run() does, and asks the task to stop at the first of `signals`, such as Ctrl-C
/// or a service manager's SIGTERM. Then waits for the task, so that it can clean up.
///
///     signal_set signals({SIGINT, SIGTERM});  // before other threads start
///     executor home;
///     const auto ended = run_until_signal(home, signals, serve(device));
///     const bool interrupted = ended.signal != 0;
///
/// A further signal does what it did before `signals` was made: it ends the process, unless the program has changed
/// that. Call on the thread that made `signals`. If no signal has come, throws what the task throws; after a signal,
/// until_signal::result has the task's weft::error, and other exceptions are still thrown.
template <class T>
until_signal<T> run_until_signal(executor& home, signal_set& signals, task<T> work) {
  detail::signal_watch watch(signals);
  return detail::run_until_signal(home, watch, std::move(work));
}

/// run_until_signal() for a server that ends in two steps. The first signal calls `drain` on the executor; `drain`
/// should make the server take no new work and finish the work under way (`[&] { listener.close(); }`). The second
/// signal asks the task to stop; a third does what it did before `signals` was made. If `drain` throws, the task is
/// asked to stop, and run_until_signal() throws the exception of `drain`.
template <class T, std::invocable Function>
until_signal<T> run_until_signal(executor& home, signal_set& signals, task<T> work, Function drain) {
  detail::draining_watch watch(signals, std::move(drain));
  return detail::run_until_signal(home, watch, std::move(work));
}

/// Runs `work` until SIGINT or SIGTERM, for a program without other threads: threads that run already would take the
/// signals.
template <class T>
until_signal<T> run_until_signal(executor& home, task<T> work) {
  signal_set signals({SIGINT, SIGTERM});
  return run_until_signal(home, signals, std::move(work));
}

}  // namespace weft

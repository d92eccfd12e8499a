// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/executor_counters.hpp>
#include <weft/runtime/executor_options.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/task.hpp>

#include <concepts>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

/// Returns the executor whose base class object `core` is.
[[nodiscard]] executor& executor_of(executor_core& core) noexcept;

/// An event loop on one thread: it resumes tasks, polls completion queues, and waits for the kernel.
///
/// It belongs to the thread that first calls run(). All calls must come from that thread, unless their comment says
/// otherwise. Destroy the connections, listeners, streams and shared receives that use it first: otherwise its
/// destructor ends the program.
class executor : private executor_core {
 public:
  /// Opens the event driver, unless executor_options::simulated_driver is given. Throws weft::error if the driver
  /// cannot be opened, or the system refuses a descriptor for dump_on_signal.
  explicit executor(executor_options options = {}) : executor_core(options) {}

  /// Runs `root` to its end on the calling thread, then waits for work in the background, such as connections that are
  /// closing. Returns what the task returned, or throws what it threw. errc::wrong_thread on any thread but the first
  /// that called it, inside a task of any executor, and if another library's loop drives this executor.
  /// errc::invalid_argument for an empty task. The first call throws weft::error if the event driver does not accept
  /// the thread.
  template <class T>
  T run(task<T> root);
  /// run() that also stops the task when a stop is requested through `token`'s source, which any thread may do.
  template <class T>
  T run(task<T> root, std::stop_token token);

  /// From any thread: calls `function` on this executor, in the order of posting: soon while it runs, else in its next
  /// run(), or in its destructor if there is none. `function` must not throw. Allocates.
  template <std::invocable Function>
  void post(Function function) {
    executor_core::post(std::move(function));
  }

  /// The executor that runs on this thread, or null.
  [[nodiscard]] static executor* current() noexcept { return static_cast<executor*>(executor_core::current()); }
  /// From any thread: whether this executor runs on the calling thread.
  [[nodiscard]] bool on_own_thread() const noexcept { return executor_core::on_own_thread(); }
  /// From any thread: whether the executor belongs to the calling thread, or still may: that thread was the first to
  /// call run(), or no thread has called run() yet.
  [[nodiscard]] bool belongs_to_this_thread() const noexcept { return executor_core::belongs_to_this_thread(); }

  /// The time of executor_options::clock, read anew.
  [[nodiscard]] time_point now() const noexcept { return executor_core::now(); }

  /// Polls `source` in every turn from now on, until remove_poller(); `source` must live until then. Call it on the
  /// thread of run(), or on any thread before the first run(); else errc::wrong_thread.
  void add_poller(poller& source) { executor_core::add_poller(source); }
  /// Removes a poller that add_poller() has added. Ends the program if `source` is any other poller.
  void remove_poller(poller& source) noexcept { executor_core::remove_poller(source); }

  /// The name of the event driver in use: "io_uring", "epoll", or that of executor_options::simulated_driver.
  [[nodiscard]] std::string_view driver() const noexcept { return io().name(); }
  /// The reason, as text, why io_uring could not be used; empty if it is used, or another driver was asked for.
  [[nodiscard]] const std::string& driver_reason() const noexcept { return driver_reason_; }

  /// The work that the executor has done so far. From any thread.
  [[nodiscard]] executor_counters statistics() const noexcept { return counters_.snapshot(); }
  /// The number of system calls that the event driver has made on this executor's thread, set-up aside. From any
  /// thread.
  [[nodiscard]] std::uint64_t kernel_entries() const noexcept { return io().kernel_entries(); }

  /// All tasks that have not ended, as text with a line for each chain of awaits: what it waits for, and for how long.
  /// Meant for finding a task that is stuck; the format may change.
  [[nodiscard]] std::string dump() const { return executor_core::dump(); }

  /// The interface for the parts of weft that are built on the runtime, with functions that users do not need: ready
  /// coroutines, timers, I/O, work from other threads, other libraries' loops. See core/executor_core.hpp.
  [[nodiscard]] friend executor_core& core_of(executor& self) noexcept { return self; }
  /// The interface of a const executor, for reading.
  [[nodiscard]] friend const executor_core& core_of(const executor& self) noexcept { return self; }
  friend executor& executor_of(executor_core& core) noexcept;

 private:
  void run_to_end(detail::root_task& root, std::stop_token token);
};

inline executor& executor_of(executor_core& core) noexcept { return static_cast<executor&>(core); }

template <class T>
T executor::run(task<T> root, std::stop_token token) {
  detail::root_handle<T> held(std::move(root));
  run_to_end(*held, std::move(token));
  return held->take();
}

template <class T>
T executor::run(task<T> root) {
  return run(std::move(root), std::stop_token());
}

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/task.hpp>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

class executor_core;

namespace detail {

/// The part of a remote_call that does not depend on the task's type.
class remote_call_base : private remote_work {
 public:
  /// The side that waits for the end of the task.
  class caller {
   protected:
    ~caller() = default;

   private:
    friend class remote_call_base;
    /// Called once, on the task's executor, as the last step there: the call may be gone when this returns.
    virtual void call_ended() noexcept = 0;
  };

  /// From any thread, once: runs the task in the background of `where`. Dumps show `name`, a string literal. If `where`
  /// has ended, start() or take() throws errc::executor_stopped.
  void start(executor_core& where, caller& waiting, const char* name);
  /// On the task's executor, before the end: asks the task to stop.
  void request_stop() noexcept { stop_.request_stop(); }

 protected:
  remote_call_base() = default;
  ~remote_call_base() = default;

  /// The task, which must not throw: it keeps its exception by keep_failure().
  virtual task<> work() = 0;
  void keep_failure() noexcept { failure_ = std::current_exception(); }
  void rethrow_failure() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  static task<> drive(remote_call_base& self);
  void run_on_executor() noexcept override;

  executor_core* where_ = nullptr;  // set by start(), like the next two
  caller* caller_ = nullptr;
  const char* name_ = nullptr;
  stop_source stop_;
  std::exception_ptr failure_;
};

/// A task that runs on another executor, and its result: for run_on() and sync_wait().
///
/// It must not be moved or destroyed between start() and the call of call_ended().
template <class T>
class remote_call final : public remote_call_base {
 public:
  explicit remote_call(task<T> what) noexcept : what_(std::move(what)) {}
  /// Only before start().
  remote_call(remote_call&& other) noexcept : what_(std::move(other.what_)) {}
  remote_call& operator=(remote_call&&) = delete;

  /// Returns the task's value or throws its exception. Call once, after the end.
  T take() {
    rethrow_failure();
    if constexpr (!std::is_void_v<T>) return std::move(*value_);
  }

 private:
  task<> work() override {
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::move(what_);
      } else {
        value_.emplace(co_await std::move(what_));
      }
    } catch (...) {
      keep_failure();
    }
  }

  using stored = std::conditional_t<std::is_void_v<T>, bool, T>;
  task<T> what_;
  std::optional<stored> value_;
};

}  // namespace detail

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/background.hpp>
#include <weft/runtime/executor.hpp>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

namespace detail {

/// The part of sync_wait() that does not depend on the task's type.
class sync_wait_base : private remote_work {
 public:
  sync_wait_base(const sync_wait_base&) = delete;
  sync_wait_base& operator=(const sync_wait_base&) = delete;

 protected:
  sync_wait_base() = default;
  ~sync_wait_base() = default;

  void wait(executor& where) {
    if (executor::current() != nullptr) throw error(errc::wrong_thread, "block an executor's thread with sync_wait");
    core_of(where).submit(*this);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    if (failure_) std::rethrow_exception(std::move(failure_));
  }

  /// The task, which ends without an exception.
  virtual task<> work() = 0;
  void keep_failure() noexcept { failure_ = std::current_exception(); }

 private:
  static task<> drive(sync_wait_base& self) {
    try {
      co_await self.work();
    } catch (...) {  // no memory for its frame
      self.keep_failure();
    }
    self.end();  // and `self` may be gone
  }
  void run_on_executor() noexcept override {
    try {
      run_in_background(*executor_core::current(), drive(*this), "sync_wait");
    } catch (...) {  // no memory for a frame
      keep_failure();
      end();
    }
  }
  void end() noexcept {
    const std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_one();  // under the lock: whoever waits destroys us after that
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr failure_;
};

template <class T>
class sync_waiter final : private sync_wait_base {
 public:
  explicit sync_waiter(task<T> what) noexcept : what_(std::move(what)) {}

  T result(executor& where) {
    wait(where);
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

/// Runs a task on an executor that runs on another thread, an executor_group's for instance, and blocks the calling
/// thread until it has ended: the way in from code that is no coroutine.
///
///     executor_group group;
///     const int answer = sync_wait(group[0], compute());
///
/// Yields what the task yields or throws. errc::wrong_thread on a thread that runs an executor, which must not block.
/// For ever if nobody runs `where`.
template <class T>
T sync_wait(executor& where, task<T> what) {
  return detail::sync_waiter<T>(std::move(what)).result(where);
}

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sync/semaphore.hpp>

#include <cstdint>
#include <utility>

namespace weft {

/// Lets one task of an executor at a time into a section that has a co_await in it. A section without co_await needs no
/// mutex, because nothing else runs on its executor meanwhile. First come, first served.
///
/// Use it on that executor alone. errc::wrong_thread for a task that would have to wait for a task on another thread;
/// unlocking on another thread while a task waits ends the program. Any other use on another thread is a data race that
/// nothing notices.
class mutex {
 public:
  /// A lock on the mutex; its destructor unlocks. Move-only; it must not outlive the mutex.
  class lock_guard {
   public:
    lock_guard() noexcept = default;  ///< holds nothing
    lock_guard(lock_guard&& other) noexcept : held_(std::exchange(other.held_, nullptr)), turn_(other.turn_) {}
    lock_guard& operator=(lock_guard&& other) noexcept {
      lock_guard(std::move(other)).swap(*this);
      return *this;
    }
    ~lock_guard() {
      if (held_ != nullptr) held_->unlock(turn_);
    }
    void swap(lock_guard& other) noexcept {
      std::swap(held_, other.held_);
      std::swap(turn_, other.turn_);
    }
    /// Whether this guard holds the mutex.
    explicit operator bool() const noexcept { return held_ != nullptr; }

   private:
    friend class mutex;
    explicit lock_guard(mutex* held) noexcept : held_(held), turn_(held != nullptr ? held->turn_ : 0) {}
    mutex* held_ = nullptr;
    std::uint64_t turn_ = 0;
  };

  /// A wait for the mutex; errc::canceled if it is stopped first.
  class [[nodiscard("co_await it")]] lock_operation {
   public:
    /// Made by mutex::lock().
    explicit lock_operation(mutex& target) noexcept : target_(&target), permit_(target.permit_, 1) {}
    bool await_ready() noexcept { return permit_.await_ready(); }
    template <std::derived_from<detail::promise_base> Promise>
    void await_suspend(std::coroutine_handle<Promise> waiter) {
      permit_.await_suspend(waiter);
    }
    [[nodiscard]] lock_guard await_resume() {
      permit_.await_resume();
      return lock_guard(target_);
    }

   private:
    mutex* target_;
    semaphore::acquire_operation permit_;
  };

  /// Whether a task holds the mutex.
  [[nodiscard]] bool is_locked() const noexcept { return permit_.available() == 0; }

  /// Waits for the mutex and locks it: `const auto guard = co_await m.lock();`, on the executor to which all users of
  /// the mutex belong.
  lock_operation lock() noexcept { return lock_operation(*this); }
  /// Locks the mutex if that needs no wait. Otherwise the returned guard holds nothing, so test it.
  [[nodiscard]] lock_guard try_lock() noexcept { return lock_guard(permit_.try_acquire() ? this : nullptr); }

 private:
  void unlock(std::uint64_t turn) noexcept {
    if (turn != turn_) detail::terminate_because_duplicated("a lock of a mutex");
    ++turn_;
    permit_.release();
  }

  semaphore permit_{1};
  std::uint64_t turn_ = 0;  // how often the mutex was unlocked
};

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/shared_on_one_thread.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cassert>
#include <cstddef>
#include <limits>

namespace weft {

/// A number of permits that tasks of one executor share. First come, first served: a task that waits for many is not
/// overtaken by tasks that want few.
///
/// Use it on that executor alone. errc::wrong_thread for a task that would have to wait for permits that were last
/// taken or awaited on another thread, and for a release() on another thread while a task waits. Any other use on
/// another thread is a data race that nothing notices.
class semaphore {
 public:
  /// Begins with `permits` free permits.
  explicit semaphore(std::size_t permits) noexcept : available_(permits) {}
  semaphore(const semaphore&) = delete;
  semaphore& operator=(const semaphore&) = delete;
  ~semaphore() {
    if (!waiting_.empty()) detail::terminate_because("a semaphore or mutex was destroyed while a task waits for it");
  }

  /// Permits that are free. Tasks that want more may be waiting all the same.
  [[nodiscard]] std::size_t available() const noexcept { return available_; }

  /// Takes permits without waiting; false if too few are free, or a task waits.
  [[nodiscard]] bool try_acquire(std::size_t permits = 1) noexcept {
    if (!waiting_.empty() || permits > available_) return false;
    available_ -= permits;
    users_thread_.enter();
    return true;
  }

  /// Gives permits back, or adds new ones; resumes the tasks that can go on, in the order in which they came.
  /// errc::wrong_thread if tasks wait on another thread.
  void release(std::size_t permits = 1) {
    users_thread_.check(!waiting_.empty(), "release a semaphore or mutex for which tasks of another executor wait");
    assert(permits <= std::numeric_limits<std::size_t>::max() - available_);
    available_ += permits;
    grant();
  }

  /// A wait for permits; errc::canceled if it is stopped first, and then none are taken.
  class [[nodiscard("co_await it")]] acquire_operation final : public detail::operation_base,
                                                               public detail::list_hook<acquire_operation> {
   public:
    /// Made by semaphore::acquire().
    acquire_operation(semaphore& target, std::size_t permits) noexcept : target_(&target), permits_(permits) {}
    acquire_operation(acquire_operation&& other) noexcept
        : operation_base(std::move(other)), target_(other.target_), permits_(other.permits_) {}
    ~acquire_operation() {
      if (!waiting()) return;
      target_->waiting_.remove(*this);
      target_->grant();  // this task may have held up tasks that want fewer
    }
    bool await_ready() noexcept { return granted_ = target_->try_acquire(permits_); }
    void await_resume() const {
      if (!granted_) throw error(errc::canceled, "wait for a semaphore");
    }
    [[nodiscard]] std::string describe() const override { return "a semaphore or mutex"; }

   private:
    friend class semaphore;
    void begin() override {
      target_->users_thread_.enter(true, "wait for a semaphore or mutex of another executor");
      target_->waiting_.push_back(*this);
    }
    void cancel() noexcept override {
      target_->waiting_.remove(*this);
      finish();
      target_->grant();  // as in the destructor
    }

    semaphore* target_;
    std::size_t permits_;
    bool granted_ = false;
  };

  /// Waits for permits and takes them: `co_await s.acquire(n)`, on the executor to which all users of the semaphore
  /// belong.
  acquire_operation acquire(std::size_t permits = 1) noexcept { return {*this, permits}; }

 private:
  void grant() noexcept {
    while (!waiting_.empty() && waiting_.front().permits_ <= available_) {
      acquire_operation& next = waiting_.pop_front();
      available_ -= next.permits_;
      next.granted_ = true;
      next.finish();
    }
  }

  std::size_t available_;
  detail::shared_on_one_thread users_thread_;
  detail::intrusive_list<acquire_operation> waiting_;
};

}  // namespace weft

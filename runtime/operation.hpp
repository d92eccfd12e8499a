// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/executor.hpp>

#include <concepts>
#include <coroutine>
#include <utility>

namespace weft::detail {

/// The usual life of an awaiter: it suspends a coroutine, hears of a stop, and resumes the coroutine once.
///
/// Derived classes write begin(), which starts the operation, and cancel(), which asks it to end early; whoever ends it
/// calls finish(). With a stop already requested begin() is not called, and canceled() tells await_resume().
class operation_base : private stop_callback {
 public:
  operation_base() = default;
  /// Only before it is awaited, so that it can be passed to with_timeout and the like.
  operation_base([[maybe_unused]] operation_base&& other) noexcept { assert(other.waiter_ == nullptr); }
  operation_base& operator=(operation_base&&) = delete;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    suspend(waiter.promise());
  }

 protected:
  ~operation_base() = default;

  /// Starts the operation. It may call finish() at once.
  virtual void begin() = 0;
  /// A stop was requested: finish(), now or when the transport lets go.
  virtual void cancel() noexcept = 0;

  /// Resumes the waiter in a coming turn. Once.
  void finish() noexcept {
    unlink();
    home_->ready(*std::exchange(waiter_, nullptr));
  }

  [[nodiscard]] bool waiting() const noexcept { return waiter_ != nullptr; }
  [[nodiscard]] bool canceled() const noexcept { return canceled_; }
  /// False after a stop that came before begin().
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  [[nodiscard]] executor& home() const noexcept { return *home_; }

 private:
  void suspend(promise_base& waiter) {
    home_ = executor::current();
    assert(home_ != nullptr && "operations are awaited on an executor");
    waiter_ = &waiter;
    const stop_token token = waiter.get_stop_token();
    if (token.stop_requested()) {
      canceled_ = true;
      return finish();
    }
    token.link(*this);
    begun_ = true;
    try {
      begin();
    } catch (...) {  // the exception goes to the coroutine, which has not been suspended then
      unlink();
      waiter_ = nullptr;
      throw;
    }
  }

  void on_stop() noexcept final {
    canceled_ = true;
    cancel();
  }

  executor* home_ = nullptr;
  promise_base* waiter_ = nullptr;
  bool canceled_ = false;
  bool begun_ = false;
};

}  // namespace weft::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/task_names.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/trace.hpp>

#include <cassert>
#include <concepts>
#include <coroutine>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace weft::detail {

/// Whether an operation may complete without suspending `waiter`: no stop was requested, and nobody traces operations.
[[nodiscard]] inline bool may_end_at_once(const promise_base& waiter) noexcept {
  assert(executor_core::current() != nullptr && "an operation was awaited outside of an executor");
  return !waiter.get_stop_token().stop_requested() && current_trace() == nullptr;
}

/// The common part of an awaiter: it suspends a coroutine, ends early at a stop, and resumes the coroutine once.
///
/// Derived classes implement begin(), which starts the operation, and cancel(), which asks it to end early; finish()
/// ends it. If a stop was requested before, begin() is not called, and await_resume() must not take that for a success:
/// it asks canceled(), or begun() if a stop does not interrupt the operation.
///
/// An operation that has ended may be awaited again, unless the class says otherwise; begin() resets its state.
/// Awaiting it while a task awaits it is errc::busy.
class operation_base {
 public:
  operation_base() = default;
  /// Moves an operation that has not been awaited, so that it can be passed to with_timeout() and the like.
  operation_base([[maybe_unused]] operation_base&& other) noexcept { assert(other.waiter_ == nullptr); }
  operation_base& operator=(operation_base&&) = delete;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    suspend(waiter.promise());
  }

  /// The name for executor::dump() and traces: "a receive", as in "2.000 s on a receive".
  [[nodiscard]] virtual std::string describe() const { return "an operation"; }
  /// When it was awaited, by executor_core::coarse_now().
  [[nodiscard]] time_point since() const noexcept { return since_; }

 protected:
  ~operation_base() = default;

  /// Starts the operation. It may call finish() at once. Not called if the class has an await_suspend() of its own.
  virtual void begin() {}
  /// Called at a stop. Must make finish() follow, at once or when whoever executes the operation lets go of it.
  virtual void cancel() noexcept = 0;

  /// Makes `waiter` wait for this operation. True: the caller must start the operation. False: a stop came before, so
  /// it has finished already. errc::busy if another task awaits it. For an await_suspend() of the operation's own,
  /// whose start does not throw.
  [[nodiscard, gnu::always_inline]] bool may_begin(promise_base& waiter) {
    if (waiter_ != nullptr) [[unlikely]]
      throw_misuse(errc::busy, "await an operation that another task awaits");
    canceled_ = false;
    begun_ = false;
    home_ = executor_core::current();
    assert(home_ != nullptr && "an operation was awaited outside of an executor");
    waiter_ = &waiter;
    waiter.set_operation(this);
    since_ = home_->coarse_now();
    if (trace_sink* const sink = current_trace()) [[unlikely]]
      trace_begin(*sink);
    if (waiter.get_stop_token().stop_requested()) [[unlikely]]
      return end_before_begin();
    begun_ = true;
    return true;
  }

  /// detail::may_end_at_once(). If true, the operation counts as begun, without may_begin().
  [[nodiscard]] bool may_end_at_once(const promise_base& waiter) noexcept {
    if (!detail::may_end_at_once(waiter)) return false;
    canceled_ = false;
    begun_ = true;
    return true;
  }

  /// Ends the operation: the waiter is resumed in a coming batch. Called once.
  void finish() noexcept { home_->ready(conclude()); }
  /// Like finish(), but at the end of a coroutine without a parent: see executor_core::ready_next().
  void finish_next() noexcept { home_->ready_next(conclude()); }

  [[nodiscard]] bool waiting() const noexcept { return waiter_ != nullptr; }
  /// The coroutine that it will resume; null unless waiting().
  [[nodiscard]] const promise_base* waiter() const noexcept { return waiter_; }
  [[nodiscard]] bool canceled() const noexcept { return canceled_; }
  /// False if a stop came before begin().
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  [[nodiscard]] executor_core& home() const noexcept { return *home_; }
  /// Reports a warning in the name of the task that waits. Call it from begin() until finish().
  void warn(std::string_view text) const noexcept {
    report what;
    what.text = text;
    const task_names names = names_of(*waiter_);
    if (names.task != nullptr) what.task = names.task;
    what.scope = names.scope;
    what.origin = names.origin;
    send_report(what);
  }

 private:
  friend class root_task;
  friend class weft::stop_source;
  friend struct debugger_layout;

  void suspend(promise_base& waiter) {
    if (!may_begin(waiter)) return;
    try {
      begin();
    } catch (...) {  // the exception is thrown in the coroutine, which is not suspended then
      if (trace_sink* const sink = current_trace()) sink->ended(trace_track::operations, this);
      waiter_->set_operation(nullptr);
      waiter_ = nullptr;
      throw;
    }
  }

  promise_base& conclude() noexcept {
    if (trace_sink* const sink = current_trace()) [[unlikely]]
      sink->ended(trace_track::operations, this);
    waiter_->set_operation(nullptr);
    return *std::exchange(waiter_, nullptr);
  }

  [[gnu::noinline, gnu::cold]] bool end_before_begin() noexcept {
    canceled_ = true;
    finish();
    return false;
  }

  // Without memory for the operation's name, the trace leaves the operation out.
  [[gnu::noinline, gnu::cold]] void trace_begin(trace_sink& sink) const noexcept {
    try {
      sink.began(trace_track::operations, this, describe());
    } catch (const std::bad_alloc&) {
    }
  }

  // Does nothing the second time: a stop finds a task twice if it was given the token that it had inherited.
  void stop() noexcept {
    if (std::exchange(canceled_, true)) return;
    cancel();
  }

  promise_base* waiter_ = nullptr;
  // Not initialized before the operation is awaited, because an operation is made for each message.
  executor_core* home_;
  time_point since_;
  bool canceled_ = false;
  bool begun_ = false;
};

}  // namespace weft::detail

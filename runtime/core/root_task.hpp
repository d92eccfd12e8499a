// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/root_observer.hpp>
#include <weft/runtime/core/task_names.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/trace.hpp>

#include <coroutine>
#include <exception>
#include <new>
#include <optional>
#include <source_location>
#include <type_traits>
#include <utility>

namespace weft::detail {

class root_waiter;

/// The number of exceptions in flight on this thread: std::uncaught_exceptions(), and one more for each frame of a
/// failed root_task that is being destroyed, with its parameters.
[[nodiscard]] int exceptions_under_way() noexcept;

/// A task that no coroutine awaits: it runs beside others, and notifies its root_observer at its end. For run(),
/// scopes, and the runtime's own background work; users spawn in a scope.
///
/// The coroutine is destroyed when it ends. The root_task lives until the coroutine has ended and its handle has let
/// go, because it keeps the result.
class root_task : private stop_callback {
 public:
  root_task(const root_task&) = delete;
  root_task& operator=(const root_task&) = delete;

  // The sized delete is its match. NOLINTNEXTLINE(misc-new-delete-overloads)
  static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { free_frame(memory, bytes); }

  /// Queues the coroutine with this token. `name` is a string literal or null.
  void start(executor_core& where, root_observer& end, stop_token token, const char* name = nullptr) noexcept {
    body_->set_stop_token(token);
    begin(where, end, name);
  }
  /// start() with a token of its own, which stops along with `parent`, or by request_stop().
  void start_below(stop_token parent, executor_core& where, root_observer& end, const char* name) noexcept {
    if (parent.stop_requested()) {
      stop_.request_stop();
    } else {
      parent.link(*this);
    }
    body_->inherit_stop_token(stop_.get_token());
    begin(where, end, name);
  }
  /// Asks a task that was started by start_below() to stop. If it then ends with errc::canceled, its owner's ended() is
  /// called, not failed(). Does nothing once it has ended. errc::wrong_thread on any executor but the task's.
  void request_stop();
  /// Destroys the coroutine, which has finished, and notifies the owner.
  void end() noexcept;
  /// Called when nobody will ask for the result. True: the caller must destroy the object. False: the task still runs,
  /// and destroys the object at its end. Ends the program if a task waits for this one.
  [[nodiscard]] bool let_go() noexcept {
    if (waiter_ != nullptr) terminate_because("the handle of a task was destroyed while somebody waits for the task");
    wanted_ = false;
    return !running();
  }
  [[nodiscard]] bool ended() const noexcept { return body_ == nullptr; }
  /// The executor on which it was started; null before that.
  [[nodiscard]] executor_core* home() const noexcept { return home_; }
  /// Sets the one operation that waits for the end, or null.
  void set_waiter(root_waiter* waiter) noexcept { waiter_ = waiter; }
  [[nodiscard]] bool has_waiter() const noexcept { return waiter_ != nullptr; }

  /// The function and its place in the source: the task's, unless set_origin() was called.
  [[nodiscard]] std::source_location origin() const noexcept { return origin_; }
  void set_origin(std::source_location origin) noexcept { origin_ = origin; }

 protected:
  explicit root_task(promise_base& body) noexcept : body_(&body), origin_(body.origin()) { body.set_root(*this); }
  virtual ~root_task() {
    if (body_ != nullptr) promise_base::destroy_chain(*body_);  // it has not been started
  }
  [[nodiscard]] promise_base& body() const noexcept { return *body_; }
  void keep_failure(std::exception_ptr failure) noexcept { failure_ = std::move(failure); }
  void rethrow_failure() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  friend class weft::executor_core;
  friend struct debugger_layout;
  friend task_names names_of(const promise_base& item) noexcept;

  void begin(executor_core& where, root_observer& end, const char* name) noexcept {
    home_ = &where;
    observer_ = &end;
    name_ = name;
    link(where.roots_);
    where.counters_.tasks.add(1);
    if (trace_sink* const sink = current_trace()) [[unlikely]]
      trace_start(*sink);
    where.ready(*body_);
  }
  /// Stops what the task waits for, and all that listens to its token.
  void on_stop() noexcept final;

  /// Moves the value out of the coroutine, which has ended without a failure.
  virtual void keep_value() noexcept = 0;

  void trace_start(trace_sink& sink) const noexcept;
  void end_with(std::exception_ptr failure) noexcept;
  [[nodiscard]] bool running() const noexcept { return previous_ != nullptr; }
  void link(root_task*& first) noexcept {
    next_ = first;
    previous_ = &first;
    if (first != nullptr) first->previous_ = &next_;
    first = this;
  }
  void leave() noexcept {
    *previous_ = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    previous_ = nullptr;
    stop_callback::unlink();
  }

  promise_base* body_;
  root_task** previous_ = nullptr;  // among all roots of the executor; null: it does not run
  root_task* next_;                 // set while it runs
  executor_core* home_ = nullptr;
  root_observer* observer_ = nullptr;
  const char* name_;  // set once it has an observer
  root_waiter* waiter_ = nullptr;
  std::source_location origin_;
  std::exception_ptr failure_;
  stop_source stop_;            // of the token that start_below() gives the task
  bool wanted_ = true;          // a handle may still ask for the result
  bool stopped_alone_ = false;  // request_stop() was called
};

/// Waits for the end of a spawned task. A stop ends the wait, and does not stop the task.
class root_waiter : public operation_base {
 public:
  [[nodiscard]] bool await_ready() const noexcept { return root_.ended(); }
  template <std::derived_from<promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    check_waitable();
    if (may_begin(waiter.promise())) root_.set_waiter(this);
  }
  [[nodiscard]] std::string describe() const override { return "a spawned task"; }

 protected:
  explicit root_waiter(root_task& root) noexcept : root_(root) {}
  root_waiter(root_waiter&& other) noexcept : operation_base(std::move(other)), root_(other.root_) {}
  ~root_waiter() {
    if (waiting()) root_.set_waiter(nullptr);
  }
  void check_ended() const {
    if (!root_.ended()) throw error(errc::canceled, "wait for a spawned task");
  }

 private:
  friend class root_task;
  // Ends the wait. Called at the end of the task.
  void wake() noexcept {
    root_.set_waiter(nullptr);
    finish_next();
  }
  void check_waitable() const {
    if (!root_.home()->on_own_thread()) [[unlikely]]
      throw_misuse(errc::wrong_thread, "wait for a task of another executor");
    if (root_.has_waiter()) [[unlikely]]
      throw_misuse(errc::busy, "await a spawned task that another task already awaits");
  }
  void cancel() noexcept override {
    root_.set_waiter(nullptr);
    finish();
  }

  root_task& root_;
};

/// Whether `failure` is a weft::error with errc::canceled.
[[nodiscard]] bool is_stop(const std::exception_ptr& failure) noexcept;

/// A root_task with the result of its task.
template <class T>
class root_of final : public root_task {
 public:
  /// Takes the task's coroutine. Throws errc::invalid_argument if the task is empty.
  explicit root_of(task<T> body) : root_of(body.release()) {}

  /// Returns the task's value or throws its exception. Call once, after the end.
  T take() {
    rethrow_failure();
    if (!value_) [[unlikely]]
      throw_misuse(errc::invalid_argument, "take the result of a task that has not ended, or whose result was taken");
    if constexpr (std::is_reference_v<T>) {
      return **std::exchange(value_, std::nullopt);
    } else if constexpr (!std::is_void_v<T>) {
      T value = std::move(*value_);
      value_.reset();
      return value;
    } else {
      value_.reset();
    }
  }

 private:
  using promise_type = task_promise<T>;
  struct nothing {};
  using stored =
      std::conditional_t<std::is_void_v<T>, nothing,
                         std::conditional_t<std::is_reference_v<T>, std::add_pointer_t<std::remove_reference_t<T>>, T>>;

  explicit root_of(std::coroutine_handle<> handle) noexcept
      : root_task(std::coroutine_handle<promise_type>::from_address(handle.address()).promise()) {}

  void keep_value() noexcept override {
    [[maybe_unused]] auto& promise = static_cast<promise_type&>(body());
    try {
      if constexpr (std::is_void_v<T>) {
        value_.emplace();
      } else if constexpr (std::is_reference_v<T>) {
        value_.emplace(&promise.take());
      } else {
        value_.emplace(promise.take());
      }
    } catch (...) {  // thrown by the value's move
      keep_failure(std::current_exception());
    }
  }

  std::optional<stored> value_;
};

/// Owns a root_of for its result.
template <class T>
class root_handle {
 public:
  root_handle() noexcept = default;
  explicit root_handle(task<T> body) : root_(new root_of<T>(std::move(body))) {}
  root_handle(root_handle&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  root_handle& operator=(root_handle&& other) noexcept {
    root_handle(std::move(other)).swap(*this);
    return *this;
  }
  ~root_handle() {
    if (root_ != nullptr && root_->let_go()) delete root_;
  }

  void swap(root_handle& other) noexcept { std::swap(root_, other.root_); }
  explicit operator bool() const noexcept { return root_ != nullptr; }
  root_of<T>& operator*() const noexcept { return *root_; }
  root_of<T>* operator->() const noexcept { return root_; }

 private:
  root_of<T>* root_ = nullptr;
};

}  // namespace weft::detail

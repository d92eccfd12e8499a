// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/frame_allocator.hpp>
#include <weft/runtime/stop_token.hpp>

#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <source_location>
#include <utility>

namespace weft {

template <class T>
class task;

namespace detail {

class operation_base;
class root_task;
struct debugger_layout;
template <class T>
class root_of;

/// The part of a promise that all coroutines of weft share: the place in the tree of tasks, the stop token, and the
/// link by which it waits in a ready queue. An awaiter keeps a promise_base* and hands it to executor_core::ready().
///
/// No coroutine resumes another directly: it leaves its successor in the thread's next_to_resume and returns to the
/// loop, because symmetric transfer would overflow the stack below -O2 and under sanitizers.
class promise_base : private stop_chain {
 public:
  promise_base() = default;
  promise_base(const promise_base&) = delete;
  promise_base& operator=(const promise_base&) = delete;

  // The sized delete is its match. NOLINTNEXTLINE(misc-new-delete-overloads)
  static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* frame, std::size_t bytes) noexcept { free_frame(frame, bytes); }

  [[nodiscard]] std::coroutine_handle<> handle() const noexcept { return handle_; }
  [[nodiscard]] stop_token get_stop_token() const noexcept { return stop_; }
  /// Gives the coroutine a token, which the coroutines that it awaits from now on inherit.
  void set_stop_token(stop_token token) noexcept {
    leave();
    stop_ = token;
    // A coroutine whose parent has the same token need not join: a stop finds it through the parent.
    if (parent_ != nullptr && parent_->stop_.source_ == token.source_) return;
    if (token.stop_possible() && !token.stop_requested()) join(*token.source_);
  }
  /// Gives the coroutine a token without joining its source, whose owner stops stoppable() itself (see root_task).
  void inherit_stop_token(stop_token token) noexcept { stop_ = token; }
  /// The operation on which the innermost coroutine with this one's token is suspended. Null if that coroutine is not
  /// suspended on an operation, or awaits a coroutine with a token of its own.
  [[nodiscard]] operation_base* stoppable() const noexcept;

  /// Makes `child` the task that this one awaits; `owner` is the handle that owns the child.
  void await_child(promise_base& child, std::coroutine_handle<>& owner) noexcept {
    child.parent_ = this;
    child.owner_ = &owner;
    child.stop_ = stop_;
    child_ = &child;
  }
  void child_done() noexcept { child_ = nullptr; }
  [[nodiscard]] promise_base* parent() const noexcept { return parent_; }
  /// The root_task of a coroutine without a parent; null for any other.
  [[nodiscard]] root_task* root() const noexcept { return parent_ == nullptr ? root_ : nullptr; }
  void set_root(root_task& root) noexcept { root_ = &root; }
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }
  [[nodiscard]] bool has_failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] std::exception_ptr take_failure() noexcept { return std::move(failure_); }
  [[nodiscard]] const promise_base* child() const noexcept { return child_; }

  /// The coroutine's function and its place in the source: its name in dumps, traces and warnings.
  [[nodiscard]] std::source_location origin() const noexcept { return origin_; }
  void set_origin(std::source_location origin) noexcept { origin_ = origin; }
  /// The operation that the coroutine is suspended on; null while it runs, is ready, or awaits a task or its scope's
  /// end.
  [[nodiscard]] const operation_base* operation() const noexcept { return operation_; }
  void set_operation(operation_base* operation) noexcept { operation_ = operation; }

  /// Destroys a suspended coroutine and all that it awaits, the innermost first and without recursion.
  static void destroy_chain(promise_base& outermost) noexcept {
    promise_base* innermost = &outermost;
    while (innermost->child_ != nullptr) innermost = innermost->child_;
    innermost->operation_ = nullptr;  // a stop while the frame is destroyed must not find the operation
    while (innermost != &outermost) {
      promise_base* const parent = innermost->parent_;
      std::exchange(*innermost->owner_, nullptr).destroy();
      parent->child_ = nullptr;
      innermost = parent;
    }
    outermost.handle_.destroy();
  }

 protected:
  ~promise_base() = default;
  void set_handle(std::coroutine_handle<> handle) noexcept { handle_ = handle; }
  void rethrow_failure() {
    if (failure_) std::rethrow_exception(take_failure());
  }

 private:
  friend class ready_queue;
  friend class weft::stop_source;
  friend struct debugger_layout;

  std::coroutine_handle<> handle_;
  promise_base* parent_ = nullptr;  // the task that awaits this one
  promise_base* child_ = nullptr;   // the task that this one awaits
  union {
    root_task* root_ = nullptr;       // without a parent NOLINT(readability-identifier-naming)
    std::coroutine_handle<>* owner_;  // with a parent: the handle that owns us NOLINT(readability-identifier-naming)
  };
  promise_base* next_ready_;  // set while the coroutine is in a ready queue
  stop_token stop_;
  std::exception_ptr failure_;
  operation_base* operation_ = nullptr;
  std::source_location origin_;
};

/// The coroutine that this thread's loop resumes next; a coroutine that suspends in favour of another sets it. Visible,
/// so that libweft.so and a program compiled with -fvisibility=hidden share it.
[[gnu::visibility("default")]] inline constinit thread_local promise_base* next_to_resume = nullptr;

/// Destroys the coroutine of a root, which has finished, and notifies the root's owner.
void end_root(root_task& finished) noexcept;

struct final_awaiter {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> finished) const noexcept {
    promise_base* const parent = finished.promise().parent();
    next_to_resume = parent;
    if (parent == nullptr) end_root(*finished.promise().root());  // destroys this awaiter, too
  }
  void await_resume() const noexcept {}
};

/// Throw the errors for an empty task, and for a coroutine that reached its end without co_return. Out of line, so that
/// checks stay small.
[[noreturn, gnu::cold]] void throw_empty_task();
[[noreturn, gnu::cold]] void throw_no_value(std::source_location origin);

class task_promise_base : public promise_base {
 public:
  std::suspend_always initial_suspend() const noexcept { return {}; }
  final_awaiter final_suspend() const noexcept { return {}; }
};

template <class T>
class task_promise final : public task_promise_base {
 public:
  task<T> get_return_object(std::source_location origin = std::source_location::current()) noexcept;
  template <class U = T>
    requires std::constructible_from<T, U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T take() {
    rethrow_failure();
    if (!value_) [[unlikely]]
      throw_no_value(origin());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <class T>
class task_promise<T&> final : public task_promise_base {
 public:
  task<T&> get_return_object(std::source_location origin = std::source_location::current()) noexcept;
  void return_value(T& value) noexcept { value_ = &value; }
  T& take() {
    rethrow_failure();
    if (value_ == nullptr) [[unlikely]]
      throw_no_value(origin());
    return *value_;
  }

 private:
  T* value_ = nullptr;
};

template <>
class task_promise<void> final : public task_promise_base {
 public:
  task<void> get_return_object(std::source_location origin = std::source_location::current()) noexcept;
  void return_void() const noexcept {}
  void take() { rethrow_failure(); }
};

}  // namespace detail

/// A coroutine that yields a T. It starts when it is awaited, and belongs to whoever holds it. Move-only.
///
/// An exception that leaves the coroutine is thrown where the task is awaited. The task runs on the executor of the
/// task that awaits it, and inherits its stop token. Tasks that await one another use no stack, however many there are.
/// A task that never started may be destroyed. A task that is suspended is destroyed with everything that it awaits;
/// the program ends if something of that cannot be abandoned, such as an operation on borrowed memory (net::transfer)
/// or on a file, a run_on(), an offload(), or a scope whose tasks run.
///
/// Awaiting, spawning or running an empty task, which was default-constructed, awaited before or moved from, is
/// errc::invalid_argument. So is awaiting a task<T> whose coroutine reaches its end without a co_return.
template <class T = void>
class [[nodiscard("co_await it")]] task {
 public:
  using promise_type = detail::task_promise<T>;
  using value_type = T;  ///< the type that `co_await` yields

  task() noexcept = default;
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    task(std::move(other)).swap(*this);
    return *this;
  }
  ~task() {
    if (handle_) detail::promise_base::destroy_chain(promise());
  }

  void swap(task& other) noexcept { std::swap(handle_, other.handle_); }
  explicit operator bool() const noexcept { return static_cast<bool>(handle_); }

  /// The coroutine's function and its place in the source. errc::invalid_argument for an empty task.
  [[nodiscard]] std::source_location origin() const {
    check();
    return promise().origin();
  }

  /// The awaiter that `co_await` makes of a task. It owns the coroutine from then on.
  class awaiter {
   public:
    /// Made by `co_await`.
    explicit awaiter(std::coroutine_handle<> handle) noexcept : handle_(handle) {}
    awaiter(awaiter&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    awaiter& operator=(awaiter&&) = delete;
    ~awaiter() {
      if (handle_) detail::promise_base::destroy_chain(promise());
    }

    bool await_ready() const noexcept { return false; }
    template <std::derived_from<detail::promise_base> Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
      parent.promise().await_child(promise(), handle_);
      detail::next_to_resume = &promise();
    }
    T await_resume() {
      promise().parent()->child_done();
      return promise().take();
    }

   private:
    promise_type& promise() const noexcept {
      return std::coroutine_handle<promise_type>::from_address(handle_.address()).promise();
    }
    std::coroutine_handle<> handle_;
  };

  /// Starts the task. A task is awaited once: `co_await std::move(t)` or `co_await make_task()`.
  awaiter operator co_await() && { return awaiter(release()); }

 private:
  friend promise_type;
  template <class>
  friend class detail::root_of;
  explicit task(std::coroutine_handle<> handle) noexcept : handle_(handle) {}

  void check() const {
    if (!handle_) [[unlikely]]
      detail::throw_empty_task();
  }
  [[nodiscard]] std::coroutine_handle<> release() {
    check();
    return std::exchange(handle_, nullptr);
  }
  promise_type& promise() const noexcept {
    return std::coroutine_handle<promise_type>::from_address(handle_.address()).promise();
  }

  std::coroutine_handle<> handle_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object(std::source_location origin) noexcept {
  const auto handle = std::coroutine_handle<task_promise>::from_promise(*this);
  set_handle(handle);
  set_origin(origin);
  return task<T>(handle);
}

template <class T>
task<T&> task_promise<T&>::get_return_object(std::source_location origin) noexcept {
  const auto handle = std::coroutine_handle<task_promise>::from_promise(*this);
  set_handle(handle);
  set_origin(origin);
  return task<T&>(handle);
}

inline task<void> task_promise<void>::get_return_object(std::source_location origin) noexcept {
  const auto handle = std::coroutine_handle<task_promise>::from_promise(*this);
  set_handle(handle);
  set_origin(origin);
  return task<void>(handle);
}

/// `co_await current_promise()` yields the promise of the coroutine itself, without suspending it.
class current_promise {
 public:
  bool await_ready() const noexcept { return false; }
  template <std::derived_from<promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) noexcept {
    self_ = &self.promise();
    return false;
  }
  promise_base& await_resume() const noexcept { return *self_; }

 private:
  promise_base* self_ = nullptr;
};

}  // namespace detail

/// `co_await current_stop_token()` yields the stop token of this task, without suspending it.
class current_stop_token {
 public:
  bool await_ready() const noexcept { return false; }
  template <std::derived_from<detail::promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) noexcept {
    token_ = self.promise().get_stop_token();
    return false;
  }
  stop_token await_resume() const noexcept { return token_; }

 private:
  stop_token token_;
};

}  // namespace weft

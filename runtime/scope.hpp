// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/as_task.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/pinned.hpp>
#include <weft/runtime/core/spawned.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/task.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <source_location>
#include <type_traits>
#include <utility>

namespace weft {

/// The reaction of a scope to the failure of a child.
enum class on_failure : std::uint8_t {
  stop_siblings,  ///< stop all other children and the body; the first failure is rethrown where the scope is awaited
  report,         ///< report the failure (report.hpp) and go on: one client's trouble is not a server's
};

/// A function that a scope calls with each failure of a child, instead of reporting it to the process: see
/// with_scope().
template <class Function>
concept failure_listener = pinned<Function> && std::is_nothrow_invocable_v<Function&, const report&>;

class scope;

namespace detail {

template <class Body>
task<> run_scope(on_failure policy, report_handler* listener, Body body, const char* name);

}  // namespace detail

/// Owns tasks that run side by side, and ends only when all of them have ended. Made by with_scope().
class scope final : private detail::root_observer {
 public:
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;

  /// Starts `child` on this executor, beside the caller; if the scope was asked to stop, the child starts with its stop
  /// requested. `name`, a string literal, stands beside the name of the child's function in dumps and reports, and
  /// instead of it in traces. errc::wrong_thread unless the scope's executor makes the call. errc::invalid_argument for
  /// an empty task, or if the scope has ended, which is noticed only until the scope's memory is reused.
  ///
  /// The returned handle may be awaited for the child's value or failure, or dropped: the scope waits for the child in
  /// either case. A failure is thrown where the handle is awaited. Whether or not the handle is awaited, the scope's
  /// first failure is thrown where the scope is awaited (on_failure::stop_siblings), or each failure is reported
  /// (on_failure::report). A child that was asked to stop and ends with errc::canceled has not failed.
  template <class T>
  spawned<T> spawn(task<T> child, const char* name = nullptr) {
    check_open();
    detail::root_handle<T> root(std::move(child));
    start(*root, name);
    return spawned<T>(std::move(root));
  }
  /// Starts a task that awaits an operation, or anything else that a task can await: `children.spawn(peer.close())`,
  /// `children.spawn(sleep_for(1s))`. An operation given as an lvalue is awaited in place, and must outlive the task.
  /// Dumps name the task after the place of this call.
  template <detail::is_awaitable Operation>
    requires(!detail::is_task<std::remove_cvref_t<Operation>>)
  spawned<detail::task_value<Operation>> spawn(Operation&& operation, const char* name = nullptr,
                                               std::source_location where = std::source_location::current()) {
    check_open();
    detail::root_handle root(detail::as_task(std::forward<Operation>(operation)));
    root->set_origin(where);
    start(*root, name);
    return spawned<detail::task_value<Operation>>(std::move(root));
  }

  /// Starts the task that `function(arguments...)` makes. Function and arguments are copied or moved into the child's
  /// frame, which keeps them until the task ends, so that even a temporary lambda may have captures:
  ///
  ///     children.spawn([&server, id]() -> task<> { co_await server.serve(id); });
  ///     children.spawn([](net::connection peer) -> task<> { ... }, std::move(peer));
  ///
  /// As with std::thread the task gets the frame's copies; std::ref passes a reference. `function` must be an lvalue,
  /// or have only trivially destructible captures: pass what it is to own as an argument.
  template <class Function, class... Arguments>
    requires std::constructible_from<std::decay_t<Function>, Function> &&
             detail::makes_task<std::decay_t<Function>&, std::decay_t<Arguments>...>
  auto spawn(Function&& function, Arguments&&... arguments) {
    detail::require_pinned<Function>();
    return spawn(detail::await_call<std::decay_t<Function>, std::decay_t<Arguments>...>(
        std::forward<Function>(function), std::forward<Arguments>(arguments)...));
  }
  /// Starts the task that `function()` makes, under the name `name`; for functions that take no string themselves.
  template <class Function>
    requires std::constructible_from<std::decay_t<Function>, Function> && detail::makes_task<std::decay_t<Function>&> &&
             (!detail::makes_task<std::decay_t<Function>&, const char*>)
  auto spawn(Function&& function, const char* name) {
    detail::require_pinned<Function>();
    return spawn(detail::await_call<std::decay_t<Function>>(std::forward<Function>(function)), name);
  }

  /// Starts a task that only wraps another; dumps name it after `origin`, the function of the wrapped task.
  void spawn_as(std::source_location origin, task<> child);

  /// Asks every child, and the body, to stop. Call on the scope's executor.
  void request_stop() noexcept { stop_.request_stop(); }

  /// How many children have not ended. Call on the scope's executor.
  [[nodiscard]] std::size_t size() const noexcept { return running_; }

  class joiner;

 private:
  template <class Body>
  friend task<> detail::run_scope(on_failure policy, report_handler* listener, Body body, const char* name);
  friend struct detail::debugger_layout;

  scope(on_failure policy, report_handler* listener, const detail::promise_base& owner, const char* name)
      : policy_(policy),
        listener_(listener),
        owner_(owner),
        name_(name),
        stop_(owner.get_stop_token()),
        home_(*executor_core::current()) {}
  ~scope() {
    if (running_ != 0)
      detail::terminate_because("a scope was destroyed while its tasks run: await with_scope() to its end");
    ended_ = true;
  }

  void check_open() const {
    if (ended_ || !home_.on_own_thread()) [[unlikely]]
      refuse();
  }
  [[noreturn]] void refuse() const;
  void start(detail::root_task& root, const char* name) noexcept {
    ++running_;
    root.start_below(stop_.get_token(), home_, *this, name);
  }
  void ended() noexcept override;
  void failed(std::exception_ptr failure, const char* task, std::source_location origin) noexcept override;
  [[nodiscard]] const detail::promise_base* owner() const noexcept override { return &owner_; }
  [[nodiscard]] const char* name() const noexcept override { return name_; }
  void note_failure(std::exception_ptr failure, const char* task, std::source_location origin) noexcept;
  void report_failure(const std::exception_ptr& failure, const char* task, std::source_location origin) const noexcept;

  on_failure policy_;
  report_handler* listener_;           // receives the failures; null: the process's handler does
  const detail::promise_base& owner_;  // the coroutine that runs the scope: run_scope()
  const char* name_;
  linked_stop_source stop_;
  executor_core& home_;
  std::size_t running_ = 0;
  std::exception_ptr first_failure_;
  std::exception_ptr first_stopped_;  // the errc::canceled of a child that was asked to stop
  detail::promise_base* joining_ = nullptr;
  // Catches a spawn through a reference to an ended scope. Volatile, because compilers drop stores to an object that is
  // dying.
  volatile bool ended_ = false;
};

/// Waits for the last child of a scope.
class scope::joiner {
 public:
  /// `children` must outlive this object.
  explicit joiner(scope& children) noexcept : children_(children) {}
  bool await_ready() const noexcept { return children_.running_ == 0; }
  template <std::derived_from<detail::promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) noexcept {
    children_.joining_ = &waiter.promise();
  }
  void await_resume() const noexcept {}

 private:
  scope& children_;
};

namespace detail {

// Body is a reference if the caller gave an lvalue, else the closure itself, which then lives in this frame.
template <class Body>
task<> run_scope(on_failure policy, report_handler* listener, Body body, const char* name) {
  promise_base& self = co_await current_promise();
  const stop_token outer = self.get_stop_token();
  scope children(policy, listener, self, name);
  self.set_stop_token(children.stop_.get_token());
  try {
    co_await body(children);
  } catch (...) {
    if (!children.first_failure_) children.first_failure_ = std::current_exception();
    children.request_stop();
  }
  while (children.running_ != 0) co_await scope::joiner(children);
  self.set_stop_token(outer);
  if (children.first_failure_) std::rethrow_exception(children.first_failure_);
  // A stop of the caller has cut the children short, so the scope has not succeeded.
  if (children.first_stopped_ && outer.stop_requested()) std::rethrow_exception(children.first_stopped_);
}

// Function is a reference if the caller gave an lvalue, like Body of run_scope().
template <class Function>
class failure_call final : public report_handler {
 public:
  explicit failure_call(Function&& function) noexcept : function_(std::forward<Function>(function)) {}

 private:
  void handle(const report& what) noexcept override { function_(what); }
  Function function_;
};

template <class Function, class Body>
task<> run_scope_with(Function function, Body body, const char* name) {
  failure_call<Function> listener(std::forward<Function>(function));
  auto all = run_scope<Body>(on_failure::report, &listener, std::forward<Body>(body), name);
  co_await std::move(all);
}

}  // namespace detail

/// Runs `body(scope&)`, then waits for every child of the scope: nothing outlives the call.
///
/// A body that throws stops all children. After they have ended, its exception is thrown, unless a child's failure came
/// first (on_failure::stop_siblings). A stop of the caller stops the body and all children; if it ends a child, the
/// call throws errc::canceled, unless there is a failure to throw. `body` must be an lvalue, or have only trivially
/// destructible captures.
///
/// The body's local variables are destroyed when it returns, perhaps before its children end: children must refer to
/// objects of the caller, or take what they need as parameters. `name`, a string literal, is the scope's name in dumps
/// and reports.
template <class Body>
task<> with_scope(on_failure policy, Body&& body, const char* name = "") {
  detail::require_pinned<Body>();
  return detail::run_scope<Body>(policy, nullptr, std::forward<Body>(body), name);
}
/// Like with_scope(on_failure::report, body, name), but calls `listener` with each failure of a child instead of
/// reporting it: for a program that has to act on failures.
///
///     const auto note = [&](const report& what) noexcept { failed.push_back(what.failure); };
///     co_await with_scope(note, accept_all, "peers");
///
/// The report is of report_kind::failure, and has the exception and the names of the task and the scope; what it refers
/// to lives until the listener returns. The listener is called on the scope's executor, after the task's frame is gone
/// and before the scope can end: the listener may spawn in the scope, or ask it to stop. send_report() passes a failure
/// on to the process. `listener` must be noexcept, and an lvalue or something with only trivially destructible
/// captures.
template <failure_listener Listener, class Body>
task<> with_scope(Listener&& listener, Body&& body, const char* name = "") {
  detail::require_pinned<Body>();
  return detail::run_scope_with<Listener, Body>(std::forward<Listener>(listener), std::forward<Body>(body), name);
}

}  // namespace weft

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/remote_call.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/executor.hpp>

#include <atomic>
#include <string>
#include <utility>

namespace weft {

namespace detail {

/// The part of run_on() that does not depend on the task's type: the answer's way back, and the stop.
///
/// outstanding_ counts the work on the other executor: the call, and a stop. Whichever ends last sends the answer home,
/// so none of this object's mail is in a mailbox when the waiter resumes. A stop that has not come when the call ends
/// never comes.
class run_on_base : public operation_base, private remote_call_base::caller {
 public:
  [[nodiscard]] std::string describe() const override { return "a task on another executor"; }

 protected:
  run_on_base(executor_core& where, remote_call_base& call) noexcept : where_(where), call_(call) {}
  run_on_base(run_on_base&& other, remote_call_base& call) noexcept
      : operation_base(std::move(other)), where_(other.where_), call_(call) {}
  ~run_on_base() = default;

  void check_begun() const;
  /// Called before the call is destroyed: ends the program if the other executor may still use it.
  void require_ended() const noexcept;

 private:
  // Mail that calls a member function of its owner when it arrives.
  class mail final : public remote_work {
   public:
    using handler = void (run_on_base::*)() noexcept;
    mail(run_on_base& owner, handler then) noexcept : owner_(owner), then_(then) {}

   private:
    void run_on_executor() noexcept override { (owner_.*then_)(); }
    run_on_base& owner_;
    handler then_;
  };

  void begin() override;
  void cancel() noexcept override;
  void call_ended() noexcept override;  // on where_
  void stop() noexcept;                 // on where_
  bool is_last() noexcept;              // on where_
  void answer() noexcept;               // on where_
  void come_home() noexcept;            // on home()

  executor_core& where_;
  remote_call_base& call_;
  mail stop_{*this, &run_on_base::stop};
  mail home_mail_{*this, &run_on_base::come_home};
  /// Counts the call and the stop until each has ended on where_. At 0 the answer is on its way home, and no more mail
  /// may be sent to where_. Stays at 1 after the end of a call whose stop was withdrawn: there is no second stop.
  std::atomic<unsigned> outstanding_{0};
  bool stop_runs_ = false;  // on where_: the call may end in the middle of stop()
};

template <class T>
class run_on_operation final : public run_on_base {
 public:
  run_on_operation(executor& where, task<T> what) noexcept
      : run_on_base(core_of(where), call_), call_(std::move(what)) {}
  run_on_operation(run_on_operation&& other) noexcept
      : run_on_base(std::move(other), call_), call_(std::move(other.call_)) {}
  run_on_operation& operator=(run_on_operation&&) = delete;
  ~run_on_operation() { require_ended(); }

  T await_resume() {
    check_begun();
    return call_.take();
  }

 private:
  remote_call<T> call_;
};

}  // namespace detail

/// Runs a task on another executor, waits until it has ended, and yields its value or throws its exception here.
///
///     auto work = count(words);
///     const auto total = co_await run_on(group[1], std::move(work));
///
/// A stop here stops the task there; run_on() still waits until the task has ended. So the objects that the task refers
/// to stay alive, but the other executor's thread uses them. The run() of that executor does not return before the task
/// has ended. A task that is sent before the first run() waits for it; errc::executor_stopped after run() has returned,
/// until it is called again. Destroying the task that waits here ends the program.
template <class T>
[[nodiscard]] detail::run_on_operation<T> run_on(executor& where, task<T> what) noexcept {
  return detail::run_on_operation<T>(where, std::move(what));
}

}  // namespace weft

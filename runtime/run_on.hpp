// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/executor.hpp>

#include <atomic>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

namespace detail {

/// The part of run_on() that does not depend on the task's type: the way there and back.
///
/// Mails to the other executor are counted, the task itself being one; whoever takes the count to zero sends the answer
/// home. So nothing of ours is in any mailbox when the waiter goes on.
class run_on_base : public operation_base {
 public:
  void await_resume() const;
  [[nodiscard]] std::string describe() const override { return "a task on another executor"; }

 protected:
  explicit run_on_base(executor& where) noexcept : where_(where) {}
  run_on_base(run_on_base&& other) noexcept : operation_base(std::move(other)), where_(other.where_) {}
  ~run_on_base();

  /// The task, which ends without an exception.
  virtual task<> work() = 0;
  void keep_failure() noexcept { failure_ = std::current_exception(); }

 private:
  // One that calls a member when it arrives.
  class mail final : public remote_work {
   public:
    using handler = void (run_on_base::*)() noexcept;
    mail(run_on_base& owner, handler then) noexcept : owner_(owner), then_(then) {}

   private:
    void run_on_executor() noexcept override { (owner_.*then_)(); }
    run_on_base& owner_;
    handler then_;
  };

  static task<> drive(run_on_base& self);
  void begin() override;
  void cancel() noexcept override;
  void start() noexcept;      // there
  void stop() noexcept;       // there
  void mail_done() noexcept;  // there
  void come_home() noexcept;  // here

  executor& where_;
  mail start_{*this, &run_on_base::start};
  mail stop_{*this, &run_on_base::stop};
  mail home_mail_{*this, &run_on_base::come_home};
  /// 0: the answer is on its way home, and no more mail may be sent there. Else the task and the stop that have not
  /// been dealt with.
  std::atomic<unsigned> outstanding_{0};
  stop_source stopping_;  // the task's, over there
  std::exception_ptr failure_;
};

template <class T>
class run_on_operation final : public run_on_base {
 public:
  run_on_operation(executor& where, task<T> what) noexcept : run_on_base(where), what_(std::move(what)) {}

  T await_resume() {
    run_on_base::await_resume();
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

/// Runs a task on another executor and resumes here with what it yields or throws.
///
///     auto work = count(words);
///     const auto total = co_await run_on(group[1], std::move(work));
///
/// A stop here stops it there, and is waited for. What the task refers to stays alive meanwhile, for its caller waits;
/// but it is touched on the other executor's thread. That executor runs until the task has ended: its run() does not
/// return before.
template <class T>
[[nodiscard]] detail::run_on_operation<T> run_on(executor& where, task<T> what) noexcept {
  return detail::run_on_operation<T>(where, std::move(what));
}

}  // namespace weft

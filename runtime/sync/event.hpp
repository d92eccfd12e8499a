// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/shared_on_one_thread.hpp>
#include <weft/runtime/intrusive_list.hpp>

namespace weft {

/// A flag that tasks of one executor wait for. While it is set, no wait suspends.
///
/// Use it on that executor alone; other threads can reach the executor by executor::post() or a channel. A set() or a
/// wait on another thread while a task waits is errc::wrong_thread. Any other use on another thread is a data race that
/// nothing notices.
class event {
 public:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() {
    if (!waiting_.empty()) detail::terminate_because("an event was destroyed while a task waits for it");
  }

  /// Whether the flag is set.
  [[nodiscard]] bool is_set() const noexcept { return set_; }

  /// Sets the flag, and resumes all waiting tasks in the order in which they came. errc::wrong_thread if they wait on
  /// another thread.
  void set() {
    waiters_thread_.check(!waiting_.empty(), "set an event for which tasks of another executor wait");
    set_ = true;
    while (!waiting_.empty()) waiting_.front().grant();
  }
  /// Clears the flag: later waits suspend.
  void reset() noexcept { set_ = false; }

  /// A wait for the event; errc::canceled if it is stopped first.
  class [[nodiscard("co_await it")]] wait_operation final : public detail::operation_base,
                                                            public detail::list_hook<wait_operation> {
   public:
    /// Made by event::wait().
    explicit wait_operation(event& target) noexcept : target_(&target) {}
    wait_operation(wait_operation&& other) noexcept : operation_base(std::move(other)), target_(other.target_) {}
    ~wait_operation() {
      if (waiting()) target_->waiting_.remove(*this);
    }
    bool await_ready() noexcept { return was_set_ = target_->set_; }
    void await_resume() const {
      if (!was_set_ && canceled()) throw error(errc::canceled, "wait for an event");
    }
    [[nodiscard]] std::string describe() const override { return "an event"; }

   private:
    friend class event;
    void begin() override {
      target_->waiters_thread_.enter(!target_->waiting_.empty(), "wait for an event of another executor");
      target_->waiting_.push_back(*this);
    }
    void cancel() noexcept override { grant(); }
    void grant() noexcept {
      target_->waiting_.remove(*this);
      finish();
    }

    event* target_;
    bool was_set_ = false;  // when it was awaited: then canceled() is about an earlier wait
  };

  /// Waits until the flag is set: `co_await e.wait()`, on the executor to which all users of the event belong.
  wait_operation wait() noexcept { return wait_operation(*this); }

 private:
  bool set_ = false;
  detail::shared_on_one_thread waiters_thread_;
  detail::intrusive_list<wait_operation> waiting_;
};

}  // namespace weft

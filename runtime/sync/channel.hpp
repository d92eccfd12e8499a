// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/light_mutex.hpp>
#include <weft/runtime/core/remote_waiter.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/trace.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// A queue of bounded length between tasks that send and tasks that receive, on any number of executors.
///
/// Values come out in the order in which they went in, and tasks that wait are served first come, first served. Only
/// force_send() drops values: if a waiting receiver is destroyed while a value is on its way to it, the next receiver
/// gets that value. Operations take a short lock, and allocate nothing. The channel must outlive all its users.
template <class T>
class channel {
  static_assert(std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>,
                "a channel moves its values, and an exception during a move would lose one");

 public:
  class [[nodiscard("co_await it")]] send_operation;
  class [[nodiscard("co_await it")]] receive_operation;

  /// Holds up to `capacity` values, at least one. Throws std::bad_alloc.
  explicit channel(std::size_t capacity) : values_(capacity == 0 ? 1 : capacity) {}
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel() {
    if (!senders_.empty() || !receivers_.empty() || promised_ != 0)
      detail::terminate_because("a channel was destroyed while a task waits for it");
  }

  /// `co_await c.send(std::move(value))`: waits for room. `value` must be a named object, because it is moved from only
  /// when there is room: a sender that is stopped (errc::canceled) or too late (errc::closed) still has it.
  send_operation send(T&& value) noexcept { return send_operation(*this, value); }
  /// Sends without waiting, from any thread; false if there is no room, or if is_closed().
  [[nodiscard]] bool try_send(T&& value) noexcept;
  /// Sends without waiting, from any thread, ahead of tasks that wait for room; drops the oldest value if there is no
  /// room. False if is_closed().
  [[nodiscard]] bool force_send(T&& value) noexcept;

  /// Waits for the next value; yields an empty optional if the channel is closed and all that was sent has been
  /// received. errc::canceled if the wait is stopped first.
  receive_operation receive() noexcept { return receive_operation(*this); }
  /// Receives without waiting, from any thread; empty if there is no value to take.
  [[nodiscard]] std::optional<T> try_receive() noexcept;

  /// Closes the channel, from any thread: nothing more can be sent, and tasks that wait for room get errc::closed.
  /// Values sent before can still be received.
  void close() noexcept;
  /// From any thread: whether close() was called. A channel stays closed.
  [[nodiscard]] bool is_closed() const noexcept {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  /// How many values wait to be received, without those that are on their way to a receiver. From any thread.
  [[nodiscard]] std::size_t size() const noexcept {
    const std::lock_guard lock(mutex_);
    return count_ - promised_;
  }
  /// How many values it can hold.
  [[nodiscard]] std::size_t capacity() const noexcept { return values_.size(); }

 private:
  // One in most_at_once operations suspends although it could complete, so that other tasks have a turn.
  static constexpr unsigned most_at_once = 64;
  // woken: a value is promised to the receiver. If the receiver is destroyed first, the next one gets that value.
  enum class outcome : std::uint8_t { pending, woken, done, closed };

  [[nodiscard]] bool is_others_turn() noexcept { return ++at_once_ % most_at_once == 0; }
  template <class Operation>
  [[nodiscard]] bool suspend(Operation& item, detail::remote_waiters& list, detail::promise_base& waiter);
  template <class Operation>
  [[nodiscard]] bool suspend_first(Operation& item, detail::remote_waiters& list, detail::promise_base& waiter);
  [[nodiscard]] outcome place(T& value, detail::remote_wake_ups& woken) noexcept;
  [[nodiscard]] outcome take(std::optional<T>& value, detail::remote_wake_ups& woken) noexcept;
  void take_promised(std::optional<T>& value) noexcept;
  void break_promise() noexcept;
  void settle(detail::remote_wake_ups& woken) noexcept;
  void promise_one(detail::remote_wake_ups& woken) noexcept;
  void admit_one(detail::remote_wake_ups& woken) noexcept;
  void end_all(detail::remote_wake_ups& woken) noexcept;
  [[nodiscard]] bool give_up(detail::remote_waiters& list, detail::remote_waiter& item) noexcept {
    const std::lock_guard lock(mutex_);
    return list.remove(item);
  }
  void put_last(T& value) noexcept {
    std::size_t place = first_ + count_;
    if (place >= values_.size()) place -= values_.size();
    values_[place].emplace(std::move(value));
    ++count_;
  }
  void take_first(std::optional<T>& value) noexcept {
    std::optional<T>& oldest = values_[first_];
    value.emplace(std::move(*oldest));
    oldest.reset();
    if (++first_ == values_.size()) first_ = 0;
    --count_;
  }

  mutable detail::light_mutex mutex_;
  std::vector<std::optional<T>> values_;  // a ring, oldest at first_
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t promised_ = 0;  // how many values are promised to receivers that were woken
  unsigned at_once_ = 0;
  bool closed_ = false;
  detail::remote_waiters senders_;    // empty while there is room
  detail::remote_waiters receivers_;  // empty unless every value is promised
};

/// The operation that channel::send() returns.
template <class T>
class channel<T>::send_operation final : public detail::remote_waiter {
 public:
  send_operation(send_operation&& other) noexcept
      : remote_waiter(std::move(other)), target_(other.target_), value_(other.value_) {}
  ~send_operation() {
    if (this->waiting() && !target_->give_up(target_->senders_, *this)) detail::remote_waiters::forget(*this);
  }
  /// A send for which there is room does not suspend the task, except in a trace, and now and then, so that others get
  /// a turn.
  template <std::derived_from<detail::promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    return target_->suspend(*this, target_->senders_, waiter.promise());
  }
  [[nodiscard]] std::string describe() const override { return "a channel to send to"; }
  void await_resume() const {
    if (outcome_ == outcome::closed) throw error(errc::closed, "send to a channel");
    if (outcome_ == outcome::pending) throw error(errc::canceled, "send to a channel");
  }

 private:
  friend class channel;
  send_operation(channel& target, T& value) noexcept : target_(&target), value_(&value) {}

  [[nodiscard]] bool is_over(detail::remote_wake_ups& woken) noexcept {
    outcome_ = target_->place(*value_, woken);
    return outcome_ != outcome::pending;
  }
  void cancel() noexcept override {
    if (target_->give_up(target_->senders_, *this)) this->finish();
  }

  channel* target_;
  T* value_;
  outcome outcome_ = outcome::pending;
};

/// The operation that channel::receive() returns.
template <class T>
class channel<T>::receive_operation final : public detail::remote_waiter {
 public:
  receive_operation(receive_operation&& other) noexcept : remote_waiter(std::move(other)), target_(other.target_) {}
  ~receive_operation() {
    if (this->waiting() && !target_->give_up(target_->receivers_, *this)) detail::remote_waiters::forget(*this);
    if (outcome_ == outcome::woken) target_->break_promise();
  }
  /// A receive for which there is a value does not suspend the task, except in a trace, and now and then, so that
  /// others get a turn.
  template <std::derived_from<detail::promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    return target_->suspend(*this, target_->receivers_, waiter.promise());
  }
  [[nodiscard]] std::string describe() const override { return "a channel to receive from"; }
  std::optional<T> await_resume() {
    if (outcome_ == outcome::pending) throw error(errc::canceled, "receive from a channel");
    if (outcome_ == outcome::woken) {
      target_->take_promised(value_);
      outcome_ = outcome::done;
    }
    if (outcome_ == outcome::closed) return std::nullopt;  // `value_` may be left over from an earlier wait
    return std::move(value_);
  }

 private:
  friend class channel;
  explicit receive_operation(channel& target) noexcept : target_(&target) {}

  [[nodiscard]] bool is_over(detail::remote_wake_ups& woken) noexcept {
    outcome_ = target_->take(value_, woken);
    return outcome_ != outcome::pending;
  }
  void cancel() noexcept override {
    if (target_->give_up(target_->receivers_, *this)) this->finish();
  }

  channel* target_;
  std::optional<T> value_;
  outcome outcome_ = outcome::pending;
};

// Starts the operation. False if it has ended without suspending the task.
template <class T>
template <class Operation>
bool channel<T>::suspend(Operation& item, detail::remote_waiters& list, detail::promise_base& waiter) {
  if (item.waiting() || detail::current_trace() != nullptr) [[unlikely]]
    return suspend_first(item, list, waiter);
  item.outcome_ = outcome::pending;
  {
    detail::remote_wake_ups woken;
    const std::lock_guard lock(mutex_);
    if (!is_others_turn()) [[likely]] {
      if (item.is_over(woken)) return false;
      if (item.may_begin(waiter)) list.push(item);
      return true;
    }
  }
  return suspend_first(item, list, waiter);
}

// Starts the operation and suspends the task even if the operation could complete, so that other tasks have a turn, or
// because a trace_sink is called: the sink may use the channel, so it is not called under the mutex.
template <class T>
template <class Operation>
[[gnu::noinline]] bool channel<T>::suspend_first(Operation& item, detail::remote_waiters& list,
                                                 detail::promise_base& waiter) {
  if (!item.waiting()) item.outcome_ = outcome::pending;
  if (!item.may_begin(waiter)) return true;  // throws if another task awaits the operation
  {
    detail::remote_wake_ups woken;
    const std::lock_guard lock(mutex_);
    if (!item.is_over(woken)) {
      list.push(item);
      return true;
    }
  }
  item.finish();
  return true;
}

template <class T>
auto channel<T>::place(T& value, detail::remote_wake_ups& woken) noexcept -> outcome {
  if (closed_) return outcome::closed;
  if (count_ == values_.size()) return outcome::pending;
  put_last(value);
  if (!receivers_.empty() && count_ > promised_) promise_one(woken);
  return outcome::done;
}

template <class T>
auto channel<T>::take(std::optional<T>& value, detail::remote_wake_ups& woken) noexcept -> outcome {
  if (count_ == promised_) return closed_ && count_ == 0 ? outcome::closed : outcome::pending;
  take_first(value);
  if (!senders_.empty()) admit_one(woken);
  return outcome::done;
}

template <class T>
void channel<T>::take_promised(std::optional<T>& value) noexcept {
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  --promised_;
  take_first(value);
  if (!senders_.empty()) admit_one(woken);
  if (!receivers_.empty()) settle(woken);
}

// Promises a value to the first receiver. Call only while a receiver waits and not every value is promised.
template <class T>
void channel<T>::promise_one(detail::remote_wake_ups& woken) noexcept {
  auto& receiver = static_cast<receive_operation&>(receivers_.pop());
  ++promised_;
  receiver.outcome_ = outcome::woken;
  woken.add(receiver);
}

// Puts the first sender's value into the ring. Call only while a sender waits, there is room, and the channel is open.
template <class T>
void channel<T>::admit_one(detail::remote_wake_ups& woken) noexcept {
  auto& sender = static_cast<send_operation&>(senders_.pop());
  put_last(*sender.value_);
  sender.outcome_ = outcome::done;
  woken.add(sender);
}

// Makes a promised value free for other receivers, because its receiver is destroyed.
template <class T>
void channel<T>::break_promise() noexcept {
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  --promised_;
  settle(woken);
}

// Ends the waits of senders and receivers that can go on. A promised value stays in the ring until its receiver takes
// it, so that the value has a place if the receiver is destroyed first.
template <class T>
void channel<T>::settle(detail::remote_wake_ups& woken) noexcept {
  while (!closed_ && !senders_.empty() && count_ < values_.size()) admit_one(woken);
  while (!receivers_.empty() && count_ > promised_) promise_one(woken);
  if (closed_) end_all(woken);
}

// Ends the waits in a closed channel. Receivers wait on while a value is promised, because a promise may be broken.
template <class T>
void channel<T>::end_all(detail::remote_wake_ups& woken) noexcept {
  while (!senders_.empty()) {
    auto& sender = static_cast<send_operation&>(senders_.pop());
    sender.outcome_ = outcome::closed;
    woken.add(sender);
  }
  while (!receivers_.empty() && count_ == 0) {
    auto& receiver = static_cast<receive_operation&>(receivers_.pop());
    receiver.outcome_ = outcome::closed;
    woken.add(receiver);
  }
}

template <class T>
bool channel<T>::try_send(T&& value) noexcept {
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  return place(value, woken) == outcome::done;
}

// May drop a promised value: a promise is for whichever value is the oldest when the receiver takes it.
template <class T>
bool channel<T>::force_send(T&& value) noexcept {
  std::optional<T> oldest;  // outlives the lock, because its destructor is code of the user
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  if (!closed_ && count_ == values_.size()) take_first(oldest);
  return place(value, woken) == outcome::done;
}

template <class T>
std::optional<T> channel<T>::try_receive() noexcept {
  std::optional<T> value;
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  static_cast<void>(take(value, woken));
  return value;
}

template <class T>
void channel<T>::close() noexcept {
  detail::remote_wake_ups woken;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  settle(woken);
}

}  // namespace weft

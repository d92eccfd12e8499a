// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/remote_waiter.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// A queue of bounded length from tasks that send to tasks that receive, on any number of executors.
///
/// Values come out in the order in which they went in, and tasks that wait are served first come first. A short lock,
/// no allocation after construction. The channel outlives everybody who uses it.
template <class T>
class channel {
  static_assert(std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>,
                "values are moved where an exception would lose one");

 public:
  class send_operation;
  class receive_operation;

  /// Holds up to `capacity` values, at least one. Throws std::bad_alloc.
  explicit channel(std::size_t capacity) : values_(capacity == 0 ? 1 : capacity) {}
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel() { assert(senders_.empty() && receivers_.empty() && "a channel was destroyed while a task waits for it"); }

  /// `co_await c.send(std::move(value))`: waits for room. `value` has a name, for it is moved from only once there is
  /// room: whoever is stopped (errc::canceled) or comes too late (errc::closed) still has it.
  [[nodiscard]] send_operation send(T&& value) noexcept { return send_operation(*this, value); }
  /// Without waiting, from any thread: false if there is no room, or the channel is closed.
  [[nodiscard]] bool try_send(T&& value) noexcept;

  /// The next value; empty once the channel is closed and all that was sent has been received.
  [[nodiscard]] receive_operation receive() noexcept { return receive_operation(*this); }
  /// Without waiting, from any thread.
  [[nodiscard]] std::optional<T> try_receive() noexcept;

  /// From any thread: nothing more can be sent. What was sent before can still be received.
  void close() noexcept;

  /// Values that wait to be received.
  [[nodiscard]] std::size_t size() const noexcept {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return values_.size(); }

 private:
  // How often in a row nobody is suspended: others on the executor want their turn.
  static constexpr unsigned most_at_once = 64;
  enum class outcome : std::uint8_t { pending, done, closed };

  [[nodiscard]] outcome place(T& value, detail::remote_waiter*& woken) noexcept;
  [[nodiscard]] outcome take(std::optional<T>& value, detail::remote_waiter*& woken) noexcept;
  void abandon(detail::remote_waiters& list, detail::remote_waiter& item) noexcept;
  void put_last(T& value) noexcept {
    values_[(first_ + count_) % values_.size()].emplace(std::move(value));
    ++count_;
  }

  mutable std::mutex mutex_;
  std::vector<std::optional<T>> values_;  // a ring, oldest at first_
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  unsigned at_once_ = 0;
  bool closed_ = false;
  detail::remote_waiters senders_;    // only while there is no room
  detail::remote_waiters receivers_;  // only while there is no value
};

/// What channel::send() returns.
template <class T>
class channel<T>::send_operation final : public detail::remote_waiter {
 public:
  send_operation(send_operation&& other) noexcept
      : remote_waiter(std::move(other)), target_(other.target_), value_(other.value_) {}
  ~send_operation() {
    if (this->waiting()) target_->abandon(target_->senders_, *this);
  }
  bool await_ready() noexcept {
    detail::remote_waiter* woken = nullptr;
    {
      const std::lock_guard lock(target_->mutex_);
      if (++target_->at_once_ % most_at_once == 0) return false;
      outcome_ = target_->place(*value_, woken);
    }
    if (woken != nullptr) detail::remote_waiters::wake(*woken);
    return outcome_ != outcome::pending;
  }
  [[nodiscard]] std::string describe() const override { return "a channel to send to"; }
  void await_resume() const {
    if (outcome_ == outcome::closed) throw error(errc::closed, "send to a channel");
    if (outcome_ == outcome::pending) throw error(errc::canceled, "send to a channel");
  }

 private:
  friend class channel;
  send_operation(channel& target, T& value) noexcept : target_(&target), value_(&value) {}

  void begin() override {
    detail::remote_waiter* woken = nullptr;
    {
      const std::lock_guard lock(target_->mutex_);
      outcome_ = target_->place(*value_, woken);
      if (outcome_ == outcome::pending) return target_->senders_.push(*this);
    }
    if (woken != nullptr) detail::remote_waiters::wake(*woken);
    this->finish();
  }
  void cancel() noexcept override {
    {
      const std::lock_guard lock(target_->mutex_);
      if (!target_->senders_.remove(*this)) return;
    }
    this->finish();
  }

  channel* target_;
  T* value_;
  outcome outcome_ = outcome::pending;
};

/// What channel::receive() returns.
template <class T>
class channel<T>::receive_operation final : public detail::remote_waiter {
 public:
  receive_operation(receive_operation&& other) noexcept : remote_waiter(std::move(other)), target_(other.target_) {}
  ~receive_operation() {
    if (this->waiting()) target_->abandon(target_->receivers_, *this);
  }
  bool await_ready() noexcept {
    detail::remote_waiter* woken = nullptr;
    {
      const std::lock_guard lock(target_->mutex_);
      if (++target_->at_once_ % most_at_once == 0) return false;
      outcome_ = target_->take(value_, woken);
    }
    if (woken != nullptr) detail::remote_waiters::wake(*woken);
    return outcome_ != outcome::pending;
  }
  [[nodiscard]] std::string describe() const override { return "a channel to receive from"; }
  std::optional<T> await_resume() {
    if (outcome_ == outcome::pending) throw error(errc::canceled, "receive from a channel");
    return std::move(value_);
  }

 private:
  friend class channel;
  explicit receive_operation(channel& target) noexcept : target_(&target) {}

  void begin() override {
    detail::remote_waiter* woken = nullptr;
    {
      const std::lock_guard lock(target_->mutex_);
      outcome_ = target_->take(value_, woken);
      if (outcome_ == outcome::pending) return target_->receivers_.push(*this);
    }
    if (woken != nullptr) detail::remote_waiters::wake(*woken);
    this->finish();
  }
  void cancel() noexcept override {
    {
      const std::lock_guard lock(target_->mutex_);
      if (!target_->receivers_.remove(*this)) return;
    }
    this->finish();
  }

  channel* target_;
  std::optional<T> value_;
  outcome outcome_ = outcome::pending;
};

template <class T>
auto channel<T>::place(T& value, detail::remote_waiter*& woken) noexcept -> outcome {
  if (closed_) return outcome::closed;
  if (!receivers_.empty()) {
    auto& receiver = static_cast<receive_operation&>(receivers_.pop());
    receiver.value_.emplace(std::move(value));
    receiver.outcome_ = outcome::done;
    woken = &receiver;
    return outcome::done;
  }
  if (count_ == values_.size()) return outcome::pending;
  put_last(value);
  return outcome::done;
}

template <class T>
auto channel<T>::take(std::optional<T>& value, detail::remote_waiter*& woken) noexcept -> outcome {
  if (count_ == 0) return closed_ ? outcome::closed : outcome::pending;
  value = std::move(values_[first_]);
  values_[first_].reset();
  first_ = (first_ + 1) % values_.size();
  --count_;
  if (!senders_.empty()) {
    auto& sender = static_cast<send_operation&>(senders_.pop());
    put_last(*sender.value_);
    sender.outcome_ = outcome::done;
    woken = &sender;
  }
  return outcome::done;
}

// A suspended task is destroyed. Whoever has taken it out of the list is about to mail it, and cannot be told.
template <class T>
void channel<T>::abandon(detail::remote_waiters& list, detail::remote_waiter& item) noexcept {
  const std::lock_guard lock(mutex_);
  if (!list.remove(item)) detail::terminate_because("a task was destroyed while another executor wakes it");
}

template <class T>
bool channel<T>::try_send(T&& value) noexcept {
  detail::remote_waiter* woken = nullptr;
  bool sent = false;
  {
    const std::lock_guard lock(mutex_);
    sent = place(value, woken) == outcome::done;
  }
  if (woken != nullptr) detail::remote_waiters::wake(*woken);
  return sent;
}

template <class T>
std::optional<T> channel<T>::try_receive() noexcept {
  detail::remote_waiter* woken = nullptr;
  std::optional<T> value;
  {
    const std::lock_guard lock(mutex_);
    static_cast<void>(take(value, woken));
  }
  if (woken != nullptr) detail::remote_waiters::wake(*woken);
  return value;
}

template <class T>
void channel<T>::close() noexcept {
  for (;;) {
    detail::remote_waiter* woken = nullptr;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      if (!senders_.empty()) {
        woken = &senders_.pop();
        static_cast<send_operation*>(woken)->outcome_ = outcome::closed;
      } else if (!receivers_.empty()) {
        woken = &receivers_.pop();
        static_cast<receive_operation*>(woken)->outcome_ = outcome::closed;
      }
    }
    if (woken == nullptr) return;
    detail::remote_waiters::wake(*woken);
  }
}

}  // namespace weft

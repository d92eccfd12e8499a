// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>

#include <cassert>
#include <utility>

namespace weft::detail {

/// An operation that another thread may end. It waits in a list, under the mutex of what it waits for. A thread that
/// takes it out of there wakes it once the mutex is free: see remote_wake_ups. An operation that is destroyed in
/// between stays until then, and so does its executor: see remote_waiters::forget().
class remote_waiter : public operation_base, private remote_work {
 protected:
  remote_waiter() = default;
  remote_waiter(remote_waiter&& other) noexcept : operation_base(std::move(other)) {}
  ~remote_waiter() { assert(!listed_); }

 private:
  friend class remote_waiters;
  friend class remote_wake_ups;
  void wake() noexcept {
    if (executor_core::current() == &home()) return finish();
    home().submit(*this);
  }
  void run_on_executor() noexcept final { finish(); }

  remote_waiter* previous_ = nullptr;
  remote_waiter* next_ = nullptr;
  bool listed_ = false;
};

/// The operations that wait for the same, first come first. All calls but forget() are made under the mutex of what
/// they wait for.
class remote_waiters {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  void push(remote_waiter& item) noexcept {
    item.listed_ = true;
    item.previous_ = last_;
    item.next_ = nullptr;
    (last_ != nullptr ? last_->next_ : first_) = &item;
    last_ = &item;
  }
  /// False if another thread has taken it out, and wakes it.
  [[nodiscard]] bool remove(remote_waiter& item) noexcept {
    if (!item.listed_) return false;
    item.listed_ = false;
    (item.previous_ != nullptr ? item.previous_->next_ : first_) = item.next_;
    (item.next_ != nullptr ? item.next_->previous_ : last_) = item.previous_;
    return true;
  }
  /// Takes the first one out; only if not empty().
  remote_waiter& pop() noexcept {
    remote_waiter& item = *first_;
    static_cast<void>(remove(item));
    return item;
  }
  /// Calls `function(item)` for each, which may remove that one.
  template <class Function>
  void for_each(Function function) const {
    for (remote_waiter* item = first_; item != nullptr;) function(*std::exchange(item, item->next_));
  }
  /// For the destructor of an operation that has been taken out and does not know it yet: takes its wake-up back. Waits
  /// for the thread that is about to wake it. On its executor, without the mutex.
  static void forget(remote_waiter& item) noexcept { item.home().withdraw(item); }

 private:
  remote_waiter* first_ = nullptr;
  remote_waiter* last_ = nullptr;
};

/// The operations that have been taken out of their lists. The destructor wakes them: make one of these before the
/// mutex is locked, so that the mutex is free by then.
class remote_wake_ups {
 public:
  remote_wake_ups() = default;
  remote_wake_ups(const remote_wake_ups&) = delete;
  remote_wake_ups& operator=(const remote_wake_ups&) = delete;
  ~remote_wake_ups() {
    while (first_ != nullptr) std::exchange(first_, first_->next_)->wake();
  }

  void add(remote_waiter& item) noexcept {
    item.next_ = nullptr;
    *end_ = &item;
    end_ = &item.next_;
  }

 private:
  remote_waiter* first_ = nullptr;
  remote_waiter** end_ = &first_;
};

}  // namespace weft::detail

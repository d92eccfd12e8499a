// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <utility>

namespace weft::detail {

class remote_wake_ups;

/// An operation that another thread may end. It waits in a list, under the mutex of the awaited object. A thread that
/// removes it wakes it once the mutex is free: see remote_wake_ups. If a wake-up is still to come, the destructor of
/// the derived class must wait for it with remote_waiters::forget(); so the executor is there until then.
class remote_waiter : public operation_base, public list_hook<remote_waiter>, private remote_work {
 protected:
  remote_waiter() = default;
  remote_waiter(remote_waiter&& other) noexcept : operation_base(std::move(other)) {}
  ~remote_waiter() = default;

 private:
  friend class remote_waiters;
  friend class remote_wake_ups;
  void wake() noexcept {
    if (executor_core::current() == &home()) return finish();
    home().submit(*this);
  }
  void run_on_executor() noexcept final { finish(); }

  remote_waiter* next_woken_;  // set while it is among remote_wake_ups
};

/// The operations that wait for one object, first come first. All calls but forget() are made under the object's mutex.
class remote_waiters {
 public:
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }

  void push(remote_waiter& item) noexcept { items_.push_back(item); }
  /// Removes `item`. False if it was removed already, by a thread that will wake it.
  [[nodiscard]] bool remove(remote_waiter& item) noexcept {
    if (!items_.contains(item)) return false;
    items_.remove(item);
    return true;
  }
  /// Removes the first one; only if not empty().
  remote_waiter& pop() noexcept { return items_.pop_front(); }
  /// Calls `function(item)` for each item. The function may remove that item.
  template <class Function>
  void for_each(Function function) const {
    for (remote_waiter& item : items_) function(item);
  }
  /// For the destructor of an operation that was removed but not yet woken: withdraws its wake-up, once the other
  /// thread has sent it. Call on the operation's executor, without the mutex.
  static void forget(remote_waiter& item) noexcept { item.home().withdraw(item); }

 private:
  intrusive_list<remote_waiter> items_;
};

/// Operations that were removed from their lists. The destructor wakes them: make this object before locking the mutex,
/// so that the mutex is free by then.
class remote_wake_ups {
 public:
  remote_wake_ups() = default;
  remote_wake_ups(const remote_wake_ups&) = delete;
  remote_wake_ups& operator=(const remote_wake_ups&) = delete;
  ~remote_wake_ups() {
    while (first_ != nullptr) std::exchange(first_, first_->next_woken_)->wake();
  }

  void add(remote_waiter& item) noexcept {
    item.next_woken_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_woken_) = &item;
    last_ = &item;
  }

 private:
  remote_waiter* first_ = nullptr;
  remote_waiter* last_;  // set if there is a first
};

}  // namespace weft::detail

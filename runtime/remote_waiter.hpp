// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/operation.hpp>

#include <cassert>
#include <utility>

namespace weft::detail {

/// A task that waits for what any thread may bring. Whoever takes it out of its list, under the mutex of what it waits
/// for, wakes it once; until then it stays.
class remote_waiter : public operation_base, private remote_work {
 protected:
  remote_waiter() = default;
  remote_waiter(remote_waiter&& other) noexcept : operation_base(std::move(other)) {}
  ~remote_waiter() { assert(!listed_); }

 private:
  friend class remote_waiters;
  void wake() noexcept {
    if (executor::current() == &home()) return finish();
    home().submit(*this);
  }
  void run_on_executor() noexcept final { finish(); }

  remote_waiter* previous_ = nullptr;
  remote_waiter* next_ = nullptr;
  bool listed_ = false;
};

/// Those that wait for the same, first come first. Under the mutex of what they wait for, except wake().
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
  /// False if somebody else has taken it out, and wakes it.
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
  static void wake(remote_waiter& item) noexcept { item.wake(); }

 private:
  remote_waiter* first_ = nullptr;
  remote_waiter* last_ = nullptr;
};

}  // namespace weft::detail

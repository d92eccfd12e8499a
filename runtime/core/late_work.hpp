// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>

namespace weft::detail {

/// Work that is done once, after a turn's ready tasks: a link sends with one system call what the turn has posted.
/// Intrusive; see executor_core::put_off().
class late_work : public list_hook<late_work> {
 public:
  late_work() = default;
  late_work(const late_work&) = delete;
  late_work& operator=(const late_work&) = delete;

 protected:
  ~late_work() = default;
  [[nodiscard]] bool is_put_off() const noexcept { return intrusive_list<late_work>::contains(*this); }

 private:
  friend class late_list;

  /// Called on the executor's thread, outside of every task. It may put itself off again.
  virtual void run_late() noexcept = 0;
};

/// A list of late work, first come, first served.
class late_list {
 public:
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }

  /// Adds the item, once, however often it is pushed.
  void push(late_work& item) noexcept {
    if (items_.contains(item)) return;
    items_.push_back(item);
    ++size_;
  }
  void remove(late_work& item) noexcept {
    if (!items_.contains(item)) return;
    items_.remove(item);
    --size_;
  }
  /// Runs the items that are here now; one that puts itself off again waits for the next turn.
  void run() noexcept {
    for (std::size_t left = size_; left != 0 && !empty(); --left) {
      --size_;
      items_.pop_front().run_late();
    }
  }

 private:
  intrusive_list<late_work> items_;
  std::size_t size_ = 0;
};

}  // namespace weft::detail

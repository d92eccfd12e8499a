// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstddef>

namespace weft::detail {

/// Work that waits until the tasks which are ready have run, and then is done once for all of them: a link sends with
/// one system call what a turn has posted. Intrusive; see executor_core::put_off().
class late_work {
 public:
  late_work() = default;
  late_work(const late_work&) = delete;
  late_work& operator=(const late_work&) = delete;

 protected:
  ~late_work() { assert(!put_off_); }
  [[nodiscard]] bool is_put_off() const noexcept { return put_off_; }

 private:
  friend class late_list;

  /// On the executor's thread, outside of every task. It may put itself off again.
  virtual void run_late() noexcept = 0;

  late_work* previous_ = nullptr;
  late_work* next_ = nullptr;
  bool put_off_ = false;
};

/// First come, first served.
class late_list {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  /// Once, however often it is asked for.
  void push(late_work& item) noexcept {
    if (item.put_off_) return;
    item.put_off_ = true;
    item.previous_ = last_;
    item.next_ = nullptr;
    (last_ != nullptr ? last_->next_ : first_) = &item;
    last_ = &item;
    ++size_;
  }
  void remove(late_work& item) noexcept {
    if (!item.put_off_) return;
    item.put_off_ = false;
    (item.previous_ != nullptr ? item.previous_->next_ : first_) = item.next_;
    (item.next_ != nullptr ? item.next_->previous_ : last_) = item.previous_;
    --size_;
  }
  /// As many as there are now, so that one that puts itself off again waits for the next turn.
  void run() noexcept {
    for (std::size_t left = size_; left != 0 && first_ != nullptr; --left) {
      late_work& item = *first_;
      remove(item);
      item.run_late();
    }
  }

 private:
  late_work* first_ = nullptr;
  late_work* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace weft::detail

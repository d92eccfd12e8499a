// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/system/timer.hpp>

namespace weft::detail {

void timer_queue::place(timer& item, std::size_t index) noexcept {
  heap_[index] = &item;
  item.index_ = index;
}

void timer_queue::sift_up(std::size_t index) noexcept {
  timer& item = *heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (before(*heap_[parent], item)) break;
    place(*heap_[parent], index);
    index = parent;
  }
  place(item, index);
}

void timer_queue::sift_down(std::size_t index) noexcept {
  timer& item = *heap_[index];
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) ++child;
    if (before(item, *heap_[child])) break;
    place(*heap_[child], index);
    index = child;
  }
  place(item, index);
}

void timer_queue::arm(timer& item, time_point deadline) {
  assert(!item.armed());
  heap_.push_back(&item);
  item.deadline_ = deadline;
  item.turn_ = armed_++;
  item.index_ = heap_.size() - 1;
  sift_up(item.index_);
}

void timer_queue::disarm(timer& item) noexcept {
  if (!item.armed()) return;
  const std::size_t index = item.index_;
  item.index_ = timer::unarmed;
  timer* const last = heap_.back();
  heap_.pop_back();
  if (last == &item) return;
  place(*last, index);
  sift_up(index);
  sift_down(last->index_);
}

std::size_t timer_queue::expire(time_point now, std::size_t budget) noexcept {
  std::size_t count = 0;
  while (count < budget && !heap_.empty() && heap_.front()->deadline_ <= now) {
    timer& due = *heap_.front();
    disarm(due);
    due.expired();  // mutant: forget timers
    ++count;
  }
  return count;
}

}  // namespace weft::detail

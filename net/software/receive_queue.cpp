// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/receive_queue.hpp>

#include <utility>

namespace weft::net::software {

void receive_queue::post(receive_work& work) noexcept {
  if (first_ != nullptr) {
    taker& next = *first_;
    forget(next);
    return next.give(work);
  }
  assert(count_ < posted_.size());
  posted_[(begin_ + count_++) % posted_.size()] = &work;
}

receive_work* receive_queue::take(taker& who) noexcept {
  if (count_ != 0) {
    --count_;
    receive_work* const oldest = posted_[begin_];
    begin_ = (begin_ + 1) % posted_.size();
    return oldest;
  }
  if (std::exchange(who.waiting_, true)) return nullptr;
  who.next_ = nullptr;
  who.previous_ = last_;
  (last_ != nullptr ? last_->next_ : first_) = &who;
  last_ = &who;
  return nullptr;
}

void receive_queue::forget(taker& who) noexcept {
  if (!std::exchange(who.waiting_, false)) return;
  (who.previous_ != nullptr ? who.previous_->next_ : first_) = who.next_;
  (who.next_ != nullptr ? who.next_->previous_ : last_) = who.previous_;
}

}  // namespace weft::net::software

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/receive_queue.hpp>

#include <cassert>

namespace weft::net::software {

void receive_queue::post(receive_work& work) noexcept {
  if (!takers_.empty()) return takers_.pop_front().give(work);
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
  if (!takers_.contains(who)) takers_.push_back(who);
  return nullptr;
}

void receive_queue::forget(taker& who) noexcept {
  if (takers_.contains(who)) takers_.remove(who);
}

}  // namespace weft::net::software

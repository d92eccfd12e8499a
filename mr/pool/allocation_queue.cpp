// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/allocation_queue.hpp>
#include <weft/mr/pool/depot.hpp>

namespace weft::mr::detail {

void allocation_queue::push(allocate_request& item) noexcept {
  item.place_ = allocate_request::place::queued;
  (item.gathers() ? gathering_ : single_).push_back(item);
  ++size_;
}

void allocation_queue::remove(allocate_request& item) noexcept {
  single_.remove(item);
  item.place_ = allocate_request::place::nowhere;
  if (--size_ == 0) reported_ = false;
}

const allocate_request* allocation_queue::oldest_of(const block_cache& cache) const noexcept {
  const allocate_request* oldest = nullptr;
  for (const auto* const each : {&single_, &gathering_}) {
    for (const allocate_request& item : *each) {
      if (item.cache_ == &cache && (oldest == nullptr || item.since() < oldest->since())) oldest = &item;
    }
  }
  return oldest;
}

bool allocation_queue::fill(allocate_request& item) noexcept {
  return fill(item, [&] { return depot_.take(item.bytes_); });
}

bool allocation_queue::put_back(allocate_request& item) noexcept {
  if (item.block_ == nullptr) return false;
  while (item.block_ != nullptr) {
    depot_.give(*std::exchange(item.block_, std::exchange(item.block_->next, nullptr)));
  }
  item.missing_ = item.count_;
  return true;
}

std::size_t allocation_queue::gathered_bytes() const noexcept {
  std::size_t sum = 0;
  const block* item = !gathering_.empty() ? gathering_.front().block_ : nullptr;
  for (; item != nullptr; item = item->next) sum += item->capacity;
  return sum;
}

}  // namespace weft::mr::detail

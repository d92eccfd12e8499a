// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/allocate_request.hpp>
#include <weft/mr/pool/block.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>
#include <utility>

namespace weft::mr::detail {

class depot;

/// The allocations that wait for blocks of one budget, in order of arrival. Under the core's mutex.
///
/// Waiters for one block come first, because established connections come before connections being set up. While no
/// task waits for one block, the first waiter for several blocks gathers blocks; the queue takes them back when a
/// waiter for one block finds none free.
class allocation_queue {
 public:
  explicit allocation_queue(depot& home) noexcept : depot_(home) {}

  void push(allocate_request& item) noexcept;
  void remove(allocate_request& item) noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether a task waits for one block.
  [[nodiscard]] bool has_single() const noexcept { return !single_.empty(); }
  /// The next to be served; null if none waits.
  [[nodiscard]] allocate_request* first() const noexcept { return (has_single() ? single_ : gathering_).first(); }
  /// Whether `item` is the first of its kind.
  [[nodiscard]] bool is_first(const allocate_request& item) const noexcept {
    return (item.gathers() ? gathering_ : single_).first() == &item;
  }
  /// The oldest waiter on the executor of `cache`; null if none waits there.
  [[nodiscard]] const allocate_request* oldest_of(const block_cache& cache) const noexcept;
  /// Claims the report of an overdue wait. False if it has been claimed since the queue was last empty.
  [[nodiscard]] bool may_report() noexcept { return !std::exchange(reported_, true); }

  /// Adds blocks from `take`, until `item` has all or `take` returns null. True once it has all; until then it does not
  /// own the blocks. Needs the mutex if `take` does, and while `item` is in the queue.
  template <class Take>
  static bool fill(allocate_request& item, Take take) noexcept;
  /// Adds blocks from the depot, as above. Under the core's mutex.
  [[nodiscard]] bool fill(allocate_request& item) noexcept;
  /// Gives back the blocks of a waiter to the depot. False if it had none.
  bool put_back(allocate_request& item) noexcept;
  /// Gives back the blocks of the first waiter that gathers. False if there were none.
  [[nodiscard]] bool put_back_gathered() noexcept { return !gathering_.empty() && put_back(gathering_.front()); }
  [[nodiscard]] std::size_t gathered_bytes() const noexcept;

 private:
  depot& depot_;
  weft::detail::intrusive_list<allocate_request> single_;
  weft::detail::intrusive_list<allocate_request> gathering_;
  std::size_t size_ = 0;   // of both lists
  bool reported_ = false;  // an overdue wait has been reported
};

template <class Take>
bool allocation_queue::fill(allocate_request& item, Take take) noexcept {
  while (item.missing_ != 0) {
    block* const more = take();
    if (more == nullptr) return false;
    more->next = std::exchange(item.block_, more);
    --item.missing_;
  }
  return true;
}

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/locked_memory.hpp>
#include <weft/mr/pool/allocate_waiter.hpp>
#include <weft/mr/pool/block_stack.hpp>
#include <weft/mr/pool/budget.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/mr/pool_options.hpp>
#include <weft/mr/pool_statistics.hpp>
#include <weft/runtime/task.hpp>

#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

namespace weft::mr {

class pool;

/// The awaitable that pool::allocate() returns.
class [[nodiscard("co_await it")]] allocate_operation {
 public:
  /// May be moved only before it is awaited.
  allocate_operation(allocate_operation&& other) noexcept
      : source_(other.source_), bytes_(other.bytes_), budget_(other.budget_), where_(other.where_) {
    assert(!other.waiter_);
  }
  allocate_operation& operator=(allocate_operation&&) = delete;
  ~allocate_operation() = default;

  bool await_ready();
  template <std::derived_from<weft::detail::promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    waiter_.emplace(core(), 1U, bytes_, budget_, where_).await_suspend(waiter);
  }
  buffer await_resume() {
    if (block_ == nullptr) [[unlikely]]
      block_ = &waiter_->take();
    return {*block_, bytes_};
  }

 private:
  friend class pool;
  allocate_operation(pool& source, std::size_t bytes, budget which, std::source_location where) noexcept
      : source_(&source), bytes_(bytes), budget_(which), where_(where) {}
  [[nodiscard]] detail::pool_core& core() const noexcept;

  pool* source_;
  std::size_t bytes_;
  budget budget_;
  std::source_location where_;
  detail::block* block_;  // set when it is awaited
  std::optional<detail::allocate_waiter> waiter_;
};

/// Buffers of registered memory: arenas are registered once and carved into buffers of many sizes.
///
/// Thread-safe; tasks of any executor may await its operations. Each executor keeps free buffers at hand, up to an
/// eighth of each budget, from which it allocates without a lock. It gives them back when an allocation waits and no
/// arena is being made, and when the pool gives up an idle arena. Workers make and free arenas; one idle arena per
/// budget is kept.
class pool {
 public:
  /// Maps nothing yet. `home` must not be null. errc::invalid_argument if receive_fraction is not between 0 and 1, or
  /// if arena_bytes or max_bytes, as lowered by the locked-memory limit, is less than 16 KiB.
  explicit pool(std::shared_ptr<domain> home, pool_options options = {});
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  /// Buffers may outlive the pool; a build with assertions or the address sanitizer reports where they were allocated
  /// (report_kind::warning). Allocations that still wait fail with errc::closed.
  ~pool();

  /// `co_await pool.allocate(bytes)` yields a buffer with that size().
  ///
  /// Waits while the budget is exhausted; waiters are served in order. An arena that cannot be made is tried again,
  /// within 1 s, as long as a task waits. errc::invalid_argument for more than max_buffer_bytes(); errc::canceled when
  /// stopped; errc::no_memory, with the system's reason, if an arena cannot be made while no buffer of the budget is in
  /// use, because nothing would end the wait. A task that waits may be destroyed: a buffer that is on its way to it
  /// returns to the pool.
  ///
  /// Nothing ends the wait of tasks that hold all the buffers themselves. So a wait of 3 s is reported
  /// (report_kind::warning). The report says how much is in use, and, in a build with assertions or the address
  /// sanitizer, where it was allocated. A budget's next wait is reported only after a time in which no task waited.
  allocate_operation allocate(std::size_t bytes, budget which = budget::send,
                              std::source_location where = std::source_location::current()) noexcept {
    return {*this, bytes, which, where};
  }

  /// Allocates without waiting. Empty if no buffer is at hand; the pool may then begin to grow. Tasks that wait for a
  /// single buffer come first, except for buffers that this executor keeps itself. Buffers that are too large to share
  /// an arena are never at hand. errc::invalid_argument as with allocate().
  [[nodiscard]] std::optional<buffer> try_allocate(std::size_t bytes, budget which = budget::send,
                                                   std::source_location where = std::source_location::current()) {
    detail::block* item = at_hand(bytes, which);
    if (item == nullptr) [[unlikely]]
      item = take(bytes, which, where);
    return item != nullptr ? std::optional<buffer>(buffer(*item, bytes)) : std::nullopt;
  }

  /// Allocates several buffers of one size, all or none. Buffers that a call has gathered stay available to allocate()
  /// until the call has all of them.
  ///
  /// In each budget, one such call at a time gathers buffers, and the others follow in order; so two calls never wait
  /// for each other's buffers. Otherwise as allocate(). errc::no_memory at once for more than max_buffers(), if the
  /// program is out of memory, and if an arena cannot be made while nothing of the budget is in use except the gathered
  /// buffers. The pool must not be destroyed before the task has started.
  task<std::vector<buffer>> allocate_all(std::size_t count, std::size_t bytes, budget which = budget::send,
                                         std::source_location where = std::source_location::current());

  /// The largest buffer that a budget can ever yield.
  [[nodiscard]] std::size_t max_buffer_bytes(budget which = budget::send) const noexcept;
  /// How many buffers of that size a budget can yield at the same time.
  [[nodiscard]] std::size_t max_buffers(std::size_t bytes, budget which = budget::send) const noexcept;

  /// The NUMA node that its memory is requested from; -1: none in particular.
  [[nodiscard]] int numa_node() const noexcept;

  /// The state of the pool, and its failures so far.
  [[nodiscard]] pool_statistics statistics() const;

 private:
  friend class allocate_operation;
  // The fast path: takes a block from this executor's cache, if this thread used this pool last. Null: call take().
  [[nodiscard]] detail::block* at_hand(std::size_t bytes, budget which) const noexcept {
    const detail::last_stacks& last = detail::last_used[static_cast<std::size_t>(which)];
    if (last.pool != number_ || bytes > detail::largest_cached) [[unlikely]]
      return nullptr;
    return last.first[detail::cached_class_of(bytes)].take(executor_core::current());
  }
  // Takes a block; null if the caller has to wait. Throws if the budget can never yield one.
  [[nodiscard]] detail::block* take(std::size_t bytes, budget which, const std::source_location& where);

  detail::pool_core* core_;
  std::uint64_t number_;  // no other pool of the process ever has it
};

inline bool allocate_operation::await_ready() {
  block_ = source_->at_hand(bytes_, budget_);
  if (block_ == nullptr) [[unlikely]]
    block_ = source_->take(bytes_, budget_, where_);
  return block_ != nullptr;
}

inline detail::pool_core& allocate_operation::core() const noexcept { return *source_->core_; }

}  // namespace weft::mr

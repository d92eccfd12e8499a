// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/pool/arena.hpp>
#include <weft/mr/pool/block_stack.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/observe/metrics.hpp>
#include <weft/runtime/task.hpp>

#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::mr {

class pool;

namespace detail {
class block_cache;
class pool_core;
}  // namespace detail

/// From which of a pool's two budgets a buffer comes. They are strictly apart, so that a sender that has used up its
/// own can still receive, and the other way round.
enum class budget : std::uint8_t { send, receive };

struct pool_options {
  /// Of all arenas together. On a device that pins, half of the locked-memory limit is the most, where the process has
  /// one (`ulimit -l`): a warning is reported then.
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t arena_bytes = std::size_t{4} << 20;  ///< of one arena; larger buffers get an arena of their own
  double receive_fraction = 0.5;                   ///< of max_bytes, for budget::receive; the rest is for budget::send
  bool huge_pages = true;  ///< try to have them, also of 1 GiB where arenas are as large; what came
                           ///< of it is in the statistics
  /// The NUMA node whose memory is preferred; empty: the device's, if it says one; -1: none in particular. The same.
  std::optional<int> numa_node = std::nullopt;
  weft::system_calls* system_calls = nullptr;  ///< seam: null is the kernel
};
static_assert(std::is_trivially_destructible_v<pool_options>);

/// What one budget of a pool has in hand. Sizes are those of the blocks, which are up to a quarter larger than what was
/// asked for.
struct budget_statistics {
  std::size_t max_bytes = 0;  ///< of all its arenas
  std::size_t arenas = 0;
  std::size_t arena_bytes = 0;   ///< in arenas: mapped and registered
  std::size_t in_use_bytes = 0;  ///< in buffers, and pinned
  std::size_t cached_bytes = 0;  ///< kept at hand by executors
  std::size_t waiting = 0;       ///< allocations that wait
};

/// What a pool has in hand.
struct pool_statistics {
  budget_statistics send;
  budget_statistics receive;
  page_kind pages = page_kind::small;  ///< of the arena that was made last
  std::string
      pages_reason;  ///< why they are not as large as could be, in words; empty if they are, or were not asked for
  int node = -1;     ///< NUMA node that it prefers; -1: none
  std::string node_reason;       ///< why it is not the one that was asked for, in words; empty if it is
  std::string max_bytes_reason;  ///< why the limit is lower than pool_options::max_bytes; empty if it is not
  std::uint64_t failures = 0;    ///< how often an arena could not be made
  std::string last_failure;      ///< why, the last time; empty if all could

  [[nodiscard]] const budget_statistics& of(budget which) const noexcept {
    return which == budget::send ? send : receive;
  }
};

/// "65536 of at most 65536 bytes are in use, 0 more are kept at hand by executors, 3 allocations wait".
[[nodiscard]] std::string to_string(const budget_statistics& what);

/// Adds what a pool has in hand to metrics, under a name for the pool.
void add_to(metrics& all, const pool_statistics& what, std::string_view name);

namespace detail {

/// A task that waits for a buffer because there was none at hand, or for several, of which it takes all or none.
class allocate_waiter final : public weft::detail::operation_base {
 public:
  allocate_waiter(pool_core& source, std::size_t count, std::size_t bytes, budget which,
                  std::source_location where) noexcept
      : core_(&source), count_(count), missing_(count), bytes_(bytes), budget_(which), where_(where) {}
  ~allocate_waiter() {
    if (waiting()) leave();
  }

  /// What it was served with, each block linked to the next. Throws why there is nothing.
  [[nodiscard]] block& take();
  [[nodiscard]] std::string describe() const override { return "memory of a pool"; }

 private:
  friend class pool_core;

  void begin() override;
  void cancel() noexcept override;
  void leave() noexcept;
  [[nodiscard]] bool gathers() const noexcept { return count_ != 1; }

  pool_core* core_;
  std::size_t count_;
  std::size_t missing_;  // of these, while it waits
  std::size_t bytes_;    // of each
  budget budget_;
  std::source_location where_;
  block* block_ = nullptr;  // the first of those that it has; while it waits, others may take them back
  std::exception_ptr failure_;

  // Under the core's mutex: among those who wait, or those of one executor who are served and do not know it yet.
  enum class place : std::uint8_t { nowhere, queued, served };
  place place_ = place::nowhere;
  block_cache* cache_ = nullptr;  // of the executor on which it waits
  allocate_waiter* previous_ = nullptr;
  allocate_waiter* next_ = nullptr;
};

}  // namespace detail

/// What pool::allocate() returns.
class allocate_operation {
 public:
  /// Only before it is awaited.
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

/// Registered memory in pieces: arenas that are registered once and carved into buffers of many sizes.
///
/// Used from any thread; on an executor, without a lock from what that one keeps at hand: an eighth of a budget at
/// most, and it gives all of it back as soon as an allocation waits. Arenas are made and given back by workers; one
/// idle arena per budget is kept.
class pool {
 public:
  /// Maps nothing yet. errc::invalid_argument if the options leave no room for a single buffer.
  explicit pool(std::shared_ptr<domain> home, pool_options options = {});
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  /// Buffers may outlive the pool: a build with assertions reports where they were allocated
  /// (report_kind::warning). Allocations that still wait fail with errc::closed.
  ~pool();

  /// `co_await pool.allocate(bytes)` yields a buffer with that size().
  ///
  /// Waits while the budget is used up; who waits is served in order. If an arena cannot be had, that is tried again,
  /// after 1 s at the latest, as long as somebody waits. errc::invalid_argument for more than max_buffer_bytes();
  /// errc::canceled when stopped; and errc::no_memory with what the system said if an arena cannot be had while nothing
  /// of the budget is in use, so that waiting would be for nothing. A task that waits may be destroyed: a buffer that
  /// is on its way to it goes back.
  ///
  /// Nothing ends the wait of tasks that hold the buffers themselves. So a wait of 3 s is reported
  /// (report_kind::warning), with what is in use; in a build with assertions also with where that was allocated. No
  /// further wait is, until none is left.
  [[nodiscard]] allocate_operation allocate(std::size_t bytes, budget which = budget::send,
                                            std::source_location where = std::source_location::current()) noexcept {
    return {*this, bytes, which, where};
  }

  /// The same without waiting: empty if there is no buffer at hand, or somebody waits for one; more memory may then be
  /// on its way. Buffers that are too large to share an arena are never at hand.
  [[nodiscard]] std::optional<buffer> try_allocate(std::size_t bytes, budget which = budget::send,
                                                   std::source_location where = std::source_location::current()) {
    detail::block* item = at_hand(bytes, which);
    if (item == nullptr) [[unlikely]]
      item = take(bytes, which, where);
    return item != nullptr ? std::optional<buffer>(buffer(*item, bytes)) : std::nullopt;
  }

  /// Several buffers of one size, all of them or none: until all are to be had, what there is stays with others.
  ///
  /// One such call at a time gathers what nobody else waits for, and the others follow in order of coming; so two of
  /// them never wait for each other's part. Else as allocate(). errc::no_memory at once for more than max_buffers(),
  /// where the program has no memory left, and if an arena cannot be had while nothing of the budget is in use but what
  /// has been gathered. The pool outlives the beginning of the task.
  [[nodiscard]] task<std::vector<buffer>> allocate_all(std::size_t count, std::size_t bytes,
                                                       budget which = budget::send,
                                                       std::source_location where = std::source_location::current());

  /// The largest buffer that a budget can ever yield.
  [[nodiscard]] std::size_t max_buffer_bytes(budget which = budget::send) const noexcept;
  /// How many buffers of that size a budget can ever yield.
  [[nodiscard]] std::size_t max_buffers(std::size_t bytes, budget which = budget::send) const noexcept;

  [[nodiscard]] pool_statistics statistics() const;

 private:
  friend class allocate_operation;
  // The fast way: of what this executor keeps at hand, if it has used this pool last. Null: ask take().
  [[nodiscard]] detail::block* at_hand(std::size_t bytes, budget which) const noexcept {
    const detail::last_stacks& last = detail::last_used[static_cast<std::size_t>(which)];
    if (last.pool != number_ || bytes > detail::largest_cached) [[unlikely]]
      return nullptr;
    return last.first[detail::cached_class_of(bytes)].take(executor_core::current());
  }
  // Null if that takes waiting; throws if it would be for nothing.
  [[nodiscard]] detail::block* take(std::size_t bytes, budget which, const std::source_location& where);

  detail::pool_core* core_;
  std::uint64_t number_;  // which no other pool has ever
};

inline bool allocate_operation::await_ready() {
  block_ = source_->at_hand(bytes_, budget_);
  if (block_ == nullptr) [[unlikely]]
    block_ = source_->take(bytes_, budget_, where_);
  return block_ != nullptr;
}

inline detail::pool_core& allocate_operation::core() const noexcept { return *source_->core_; }

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/pool/allocate_request.hpp>
#include <weft/mr/pool/allocation_queue.hpp>
#include <weft/mr/pool/arena_supply.hpp>
#include <weft/mr/pool/block_caches.hpp>
#include <weft/mr/pool/budget.hpp>
#include <weft/mr/pool/depot.hpp>
#include <weft/mr/pool/pool_limits.hpp>
#include <weft/mr/pool_options.hpp>
#include <weft/mr/pool_statistics.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

namespace weft::mr::detail {

/// The state of a pool, which outlives it until the last buffer, cache and job is gone.
///
/// One mutex guards all of it, except the blocks on executors' shelves. Nothing under the mutex blocks, resumes a task,
/// runs a user's code or calls the pool again: such duties are noted, and performed after the mutex is released. Other
/// executors, however, are woken under it (executor_core::submit()), because an executor that has a cache may be gone
/// once the mutex is released. Waking takes one system call at most, or executor_core::outer_loop::wake(), which must
/// not call weft.
class pool_core final : private retirement_listener {
 public:
  pool_core(std::shared_ptr<domain> home, const pool_options& options);
  pool_core(const pool_core&) = delete;
  pool_core& operator=(const pool_core&) = delete;

  /// The pool's number, which no other pool of the process ever has.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// See pool::numa_node().
  [[nodiscard]] int node() const noexcept { return node_; }

  /// Takes a block without waiting; null if the caller has to wait.
  [[nodiscard]] block* take(std::size_t bytes, budget which, const std::source_location& where) noexcept;
  /// Takes a block back from its buffer or last pin.
  void give(block& item) noexcept;
  /// The core that a block belongs to.
  [[nodiscard]] static pool_core& of(const block& item) noexcept;

  void enqueue(allocate_request& waiter);
  /// Removes a waiter from the queue. False if it has been served meanwhile.
  [[nodiscard]] bool withdraw(allocate_request& waiter) noexcept;
  /// Forgets a waiter that is being destroyed: if it has been served, it is not resumed.
  void abandon(allocate_request& waiter) noexcept;

  [[nodiscard]] const pool_limits& limits() const noexcept { return limits_; }
  [[nodiscard]] std::size_t most_blocks(std::size_t bytes, budget which) const noexcept {
    return budget_of(which).most_blocks(bytes, limits_.of(which));
  }
  /// The error of a waiter that has been withdrawn.
  [[nodiscard]] error canceled(const allocate_request& waiter) const;
  [[nodiscard]] pool_statistics statistics() const;

  /// Reports the buffers still in use, with the places where they were allocated. Does nothing in a build that does not
  /// note these places.
  void report_leaks() const noexcept;
  /// Called when the pool is destroyed: fails the waiters, and deletes the core now or when nothing needs it any more.
  void close() noexcept;

 private:
  class attached_cache;
  class growth_job;

  /// One budget: its arenas, and the allocations that wait for blocks of them.
  struct budget_state final : depot {
    budget_state(retirement_listener& listener, budget which, const pool_limits& limits) noexcept
        : depot(listener, which, limits.arena_bytes(which)), supply(*this, limits.of(which)), waiting(*this) {}
    arena_supply supply;
    allocation_queue waiting;
  };

  /// The memory that an arena got.
  struct placement {
    page_kind pages = page_kind::small;
    std::string pages_reason;
    int node = -1;
    std::string node_reason;
  };

  /// Work to do after the mutex is released.
  struct duties {
    weft::detail::intrusive_list<allocate_request> served;  // waiters of this thread, to be resumed
    arena_supply::orders arenas;
    bool last = false;
  };

  template <class Function>
  void locked(Function function) noexcept;
  static void perform(pool_core* core, duties& todo) noexcept;
  static void carry_out(pool_core& core, arena_supply::orders& arenas) noexcept;
  [[nodiscard]] bool finished() const noexcept;

  [[nodiscard]] budget_state& budget_of(budget which) noexcept { return budgets_[index_of(which)]; }
  [[nodiscard]] const budget_state& budget_of(budget which) const noexcept { return budgets_[index_of(which)]; }

  [[nodiscard]] attached_cache* find_cache_here() noexcept;
  [[nodiscard]] attached_cache* find_or_attach_cache(executor_core& here);
  [[nodiscard]] attached_cache* attach_cache(executor_core& here);
  void take_all(block_cache& from, duties& todo) noexcept;
  static void name_stack(block& item, block_cache* cache) noexcept;
  void put_back(block& item, duties& todo) noexcept;

  void serve(budget_state& from, duties& todo) noexcept;
  static void hand_out(block& item, const allocate_request& to) noexcept;
  static void take_at_hand(allocate_request& waiter) noexcept;
  void resolve(budget_state& from, allocate_request& waiter, duties& todo) noexcept;
  void unlink(budget_state& from, allocate_request& waiter) noexcept;
  void trim(budget_state& from, duties& todo) noexcept;

  void retry_growth() noexcept;
  // Called by jobs of run_on_worker(); not_grown() also on the thread that has no memory to make such a job.
  void grow(budget_state& into, std::size_t bytes, bool whole) noexcept;
  void grown(budget_state& into, std::unique_ptr<carved_arena> item, placement where) noexcept;
  // The memory that was missing to make an arena.
  enum class shortage : std::uint8_t {
    arena,    // its mapping or its registration
    program,  // memory of the program's own, without which no arena is cut either
  };
  void not_grown(budget_state& into, std::size_t bytes, shortage of, const char* why) noexcept;
  void retired(depot& home, std::size_t bytes) noexcept override;
  [[nodiscard]] error no_arena(const budget_state& into, std::size_t bytes, std::string_view why) const;

  [[nodiscard]] std::optional<time_point> report_overdue(const block_cache& cache, time_point now) noexcept;
  void report_overdue(const allocate_request& waiter, duration waited) noexcept;
  [[nodiscard]] static std::string in_words(const allocate_request& waiter);
  [[nodiscard]] budget_statistics statistics_of(budget which) const noexcept;

  const std::uint64_t number_;
  const std::shared_ptr<domain> domain_;
  weft::system_calls& calls_;
  const bool huge_pages_;
  const int node_;
  const pool_limits limits_;
  const std::exception_ptr gone_;  // for tasks that wait when the pool is destroyed; made while there is memory for it

  mutable std::mutex mutex_;
  block_caches caches_;
  std::array<budget_state, budgets> budgets_;  // by budget
  bool closed_ = false;
  placement last_placement_;
  std::string last_failure_;
  std::uint64_t failures_ = 0;
  unsigned failures_in_a_row_ = 0;
};

}  // namespace weft::mr::detail

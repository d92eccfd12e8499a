// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/pool/allocate_request.hpp>
#include <weft/mr/pool/block_stack.hpp>
#include <weft/mr/pool/budget.hpp>
#include <weft/mr/pool/depot.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/mr/pool_options.hpp>
#include <weft/mr/pool_statistics.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/timer.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::mr::detail {

class pool_core;
class block_cache;

inline constexpr std::size_t budgets = 2;  // the number of values of `budget`

/// The stacks of free blocks that one executor caches, for both budgets. One executor after another may use a shelf; it
/// lives as long as the core, because blocks in use point to its stacks.
///
/// Only its user calls functions that do not say otherwise.
class block_shelf {
 public:
  /// `limits`: in bytes, for each budget.
  explicit block_shelf(const std::array<std::size_t, budgets>& limits);
  block_shelf(const block_shelf&) = delete;
  block_shelf& operator=(const block_shelf&) = delete;

  /// Lets `user` take and give blocks of a budget without the core. Under the core's mutex.
  void open(std::size_t tag, const executor_core& user) noexcept;
  /// Ends that. Under the core's mutex.
  void close(std::size_t tag) noexcept;

  /// All stacks of a budget, by size class.
  [[nodiscard]] block_stack& first(std::size_t tag) noexcept { return stacks_[tag * cached_classes]; }
  [[nodiscard]] block_stack& operator[](std::size_t index) noexcept { return stacks_[index]; }
  /// A block of that stack; null if it is empty.
  [[nodiscard]] block* pop(std::size_t index) noexcept;
  /// False if there is no room for it, and none can be made.
  [[nodiscard]] bool push(std::size_t index, block& item) noexcept;
  [[nodiscard]] std::size_t count(std::size_t index) const noexcept;
  /// The bytes of a budget that it holds. From any thread.
  [[nodiscard]] std::size_t bytes(std::size_t tag) const noexcept;

  std::unique_ptr<block_shelf> next;  // in the list of unused shelves

 private:
  [[nodiscard]] bool make_room(std::size_t index) noexcept;
  void reclaim(std::size_t tag) noexcept;

  std::array<block_stack, no_stack> stacks_;
  const std::array<std::size_t, budgets> limits_;
  // The bytes that all stacks of a budget have room for. The limit is on this room, as if it were full, so that taking
  // and giving need not count.
  std::array<std::size_t, budgets> room_{};
  std::vector<block*> places_;
};

/// The part of a pool on one executor: the shelf, and a mailbox through which other threads serve tasks that wait
/// there. Mail goes to the cache and not to the task, so that the task may be destroyed meanwhile.
class block_cache final : public weft::detail::attachment,
                          public weft::detail::list_hook<block_cache>,
                          private weft::detail::remote_work,
                          private weft::detail::timer {
 public:
  block_cache(pool_core& core, executor_core& home, std::unique_ptr<block_shelf> shelf) noexcept
      : core_(core), home_(home), shelf_(std::move(shelf)) {}
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;
  ~block_cache() override;

  [[nodiscard]] block_shelf& shelf() noexcept { return *shelf_; }

 private:
  friend class pool_core;

  void run_on_executor() noexcept override;
  void expired() noexcept override;  // time to try again to make an arena
  void retry_after(duration pause) noexcept;

  // The timer that looks for tasks that wait here for too long.
  class watch final : public weft::detail::timer {
   public:
    explicit watch(block_cache& cache) noexcept : cache_(cache) {}

   private:
    void expired() noexcept override { cache_.look(); }
    block_cache& cache_;
  };
  void look() noexcept;
  // Schedules look() for `when`, unless it is scheduled already.
  void look_at(time_point when) noexcept;

  pool_core& core_;
  executor_core& home_;
  std::unique_ptr<block_shelf> shelf_;
  watch watch_{*this};

  // Under the core's mutex.
  bool mailed_ = false;  // run_on_executor() is scheduled
  bool flush_requested_ = false;
  bool retry_requested_ = false;
  weft::detail::intrusive_list<allocate_request> served_;  // the waiters to resume, in order
  bool registered_ = false;
};

/// The state of a pool, which outlives it until the last buffer, cache and job is gone.
///
/// One mutex guards all of it. Nothing under the mutex blocks, resumes a task, runs a user's code or calls the pool
/// again: such duties are noted, and performed after the mutex is released. Other executors, however, are woken under
/// it (executor_core::submit()), because an executor that has a cache may be gone once the mutex is released. That
/// takes one system call at most, or executor_core::outer_loop::wake(), which must not call weft.
class pool_core final : private retirement_listener {
 public:
  pool_core(std::shared_ptr<domain> home, const pool_options& options);
  pool_core(const pool_core&) = delete;
  pool_core& operator=(const pool_core&) = delete;

  /// The pool's number, which no other pool of the process ever has.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// pool::numa_node()
  [[nodiscard]] int node() const noexcept { return node_; }

  /// A block without waiting, or null.
  [[nodiscard]] block* take(std::size_t bytes, budget which, const std::source_location& where) noexcept;
  /// Takes a block back from its buffer or last pin.
  void give(block& item) noexcept;
  /// The core that a block belongs to.
  [[nodiscard]] static pool_core& of(const block& item) noexcept;

  void enqueue(allocate_request& waiter);
  /// False if the waiter has been served meanwhile.
  [[nodiscard]] bool withdraw(allocate_request& waiter) noexcept;
  /// Forgets a waiter that is being destroyed: if it has been served, it is not resumed.
  void abandon(allocate_request& waiter) noexcept;

  [[nodiscard]] std::size_t limit(budget which) const noexcept { return budget_of(which).limit; }
  [[nodiscard]] std::size_t most_blocks(std::size_t bytes, budget which) const noexcept {
    return budget_of(which).stock.most_blocks(bytes, limit(which));
  }
  [[nodiscard]] error impossible(std::size_t bytes, budget which) const;
  [[nodiscard]] error impossible(std::size_t count, std::size_t bytes, budget which) const;
  /// The error of a waiter that has been withdrawn.
  [[nodiscard]] error canceled(const allocate_request& waiter) const;
  /// Reports tasks that have waited too long on the cache's executor; called there. Returns when to look again, if a
  /// task waits.
  [[nodiscard]] std::optional<time_point> report_overdue(block_cache& cache) noexcept;
  [[nodiscard]] pool_statistics statistics() const;

  /// Reports the buffers still in use, with the place where they were allocated if that was noted.
  void report_leaks() const noexcept;
  /// The pool is being destroyed. Deletes the core, now or when nothing needs it any more.
  void close() noexcept;

  /// Work that the mail leaves to the cache.
  struct orders {
    bool go = false;                // the pool is gone
    std::optional<duration> retry;  // call retry_growth() after this pause
  };
  /// Handles the mail of a cache, on its executor.
  [[nodiscard]] orders run_mail(block_cache& cache) noexcept;
  /// Tries again to make the arenas that tasks wait for.
  void retry_growth() noexcept;
  /// Takes back all blocks that a cache holds.
  void flush(block_cache& cache) noexcept;
  void forget(block_cache& cache) noexcept;

 private:
  class growth_job;

  struct budget_state {
    budget_state(retirement_listener& listener, budget which, std::atomic<bool>& bypass) noexcept
        : stock(listener, static_cast<std::uint8_t>(which)), direct(bypass) {}
    depot stock;
    std::size_t limit = 0;
    std::size_t committed = 0;  // bytes of all arenas, including those being made or freed
    std::size_t retiring = 0;   // bytes of these that are being freed
    bool growing = false;
    bool ahead = true;  // may grow before a task waits; false after a failure
    // Waiters for one block, in order of arrival.
    weft::detail::intrusive_list<allocate_request> single;
    // Waiters for several blocks, in order of arrival. The first gathers blocks that no waiter for one block can use,
    // and gives them back when one can, because established connections come before those that are being set up.
    weft::detail::intrusive_list<allocate_request> gathering;
    std::size_t waiting = 0;  // in both queues
    bool reported = false;    // an overdue wait has been reported; reset when no task waits
    // Executors cache nothing, so that freed blocks reach the waiters.
    std::atomic<bool>& direct;
  };

  /// The memory that an arena got.
  struct placement {
    page_kind pages = page_kind::small;
    std::string pages_reason;
    int node = -1;
    std::string node_reason;
  };

  /// What is left to do after the mutex is released.
  struct duties {
    weft::detail::intrusive_list<allocate_request> served;  // waiters of this thread, to be resumed
    carved_arena* retired = nullptr;
    std::array<std::size_t, budgets> grow_bytes{};  // 0: no growth
    std::array<bool, budgets> grow_whole{};
    bool last = false;
  };

  template <class Function>
  void locked(Function function) noexcept;
  static void perform(pool_core* core, duties& todo) noexcept;

  [[nodiscard]] budget_state& budget_of(budget which) noexcept { return budgets_[static_cast<std::size_t>(which)]; }
  [[nodiscard]] const budget_state& budget_of(budget which) const noexcept {
    return budgets_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] std::size_t tag_of(const budget_state& item) const noexcept {
    return static_cast<std::size_t>(&item - budgets_.data());
  }
  [[nodiscard]] budget which_budget(const depot& stock) const noexcept;
  [[nodiscard]] budget_statistics statistics_of(budget which) const noexcept;
  void report_overdue(const allocate_request& waiter, duration waited) noexcept;
  [[nodiscard]] static std::string in_words(const allocate_request& waiter);
  // The most of a budget that one executor caches.
  [[nodiscard]] static std::size_t cache_limit(const budget_state& from) noexcept { return from.limit / 8; }

  [[nodiscard]] block_cache* find_cache_here() noexcept;
  [[nodiscard]] block_cache* find_or_attach_cache(executor_core& here);
  [[nodiscard]] block_cache* attach_cache(executor_core& here);
  [[nodiscard]] std::unique_ptr<block_shelf> make_shelf();
  static void name_stack(block& item, block_cache* cache) noexcept;
  void put_back(block& item, duties& todo) noexcept;
  void serve(budget_state& from, duties& todo) noexcept;
  void wait_for_more(budget_state& from, std::size_t bytes, duties& todo) noexcept;
  static void hand_out(block& item, const allocate_request& to) noexcept;
  static void take_at_hand(allocate_request& waiter) noexcept;
  [[nodiscard]] static bool gather(budget_state& from, allocate_request& waiter) noexcept;
  // False if it had no blocks.
  static bool put_back_gathered(budget_state& from, allocate_request& waiter) noexcept;
  [[nodiscard]] static bool is_first(const budget_state& from, const allocate_request& waiter) noexcept {
    return (waiter.gathers() ? from.gathering : from.single).first() == &waiter;
  }
  [[nodiscard]] static allocate_request* first_of(const budget_state& from) noexcept {
    return (from.single.empty() ? from.gathering : from.single).first();
  }
  [[nodiscard]] static std::size_t gathered_bytes(const budget_state& from) noexcept;
  void resolve(budget_state& from, allocate_request& waiter, duties& todo) noexcept;
  void unlink(budget_state& from, allocate_request& waiter) noexcept;
  void want_arena(budget_state& from, std::size_t bytes, duties& todo) noexcept;
  void grow_ahead(budget_state& from, duties& todo) noexcept;
  void start_growth(budget_state& from, std::size_t bytes, bool whole, duties& todo) noexcept;
  void trim(budget_state& from, duties& todo) noexcept;
  void retire(budget_state& from, std::unique_ptr<carved_arena> item, duties& todo) noexcept;
  void set_direct(budget_state& of, bool direct) noexcept;
  void request_flush(budget_state& from) noexcept;
  void request_flush(block_cache& cache) noexcept;
  void request_retry(budget_state& from) noexcept;
  void mail(block_cache& cache) noexcept;
  void take_all(block_cache& cache, duties& todo) noexcept;
  [[nodiscard]] bool finished() const noexcept;

  // On a worker.
  void grow(budget_state& into, std::size_t bytes, bool whole) noexcept;
  void grown(budget_state& into, std::unique_ptr<carved_arena> item, placement where) noexcept;
  // What was missing to make an arena.
  enum class shortage : std::uint8_t {
    arena,    // its mapping or its registration
    program,  // memory of the program's own, without which no arena is cut either
  };
  void not_grown(budget_state& into, std::size_t bytes, shortage of, const char* why) noexcept;
  void retired(depot& home, std::size_t bytes) noexcept override;
  void warn_of_limit(std::size_t limit) const;
  [[nodiscard]] error no_arena(const budget_state& into, std::size_t bytes, std::string_view why) const;

  const std::uint64_t number_;
  const std::shared_ptr<domain> domain_;
  weft::system_calls& calls_;
  const bool huge_pages_;
  const int node_;
  std::string max_bytes_reason_;
  const std::exception_ptr gone_;  // for tasks that wait when the pool is destroyed; made while there is memory for it

  mutable std::mutex mutex_;
  std::array<std::atomic<bool>, budgets> direct_{};
  std::array<budget_state, budgets> budgets_;
  weft::detail::intrusive_list<block_cache> caches_;
  std::unique_ptr<block_shelf> idle_shelves_;
  std::size_t jobs_ = 0;  // arenas being made or given back
  bool closed_ = false;
  placement last_placement_;
  std::string last_failure_;
  std::uint64_t failures_ = 0;
  unsigned failures_in_a_row_ = 0;
};

}  // namespace weft::mr::detail

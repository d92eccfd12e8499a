// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/depot.hpp>
#include <weft/mr/pool.hpp>
#include <weft/runtime/timer.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace weft::mr::detail {

class pool_core;
class block_cache;

inline constexpr std::size_t shares = 2;  // as many as there are budgets

/// Free blocks that one executor keeps at hand, touched by its thread only; and its letter box, for what other threads
/// have for those who wait there. Mail that is addressed to the cache does not mind when one of them is gone.
class block_cache final : public executor::attachment, private weft::detail::remote_work, private weft::detail::timer {
 public:
  /// `limits`: of bytes, for each share.
  block_cache(pool_core& core, executor& home, const std::array<std::size_t, shares>& limits) noexcept;
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;
  ~block_cache() override;

  /// Null if there is none.
  [[nodiscard]] block* pop(std::size_t index) noexcept {
    list& from = lists_[index];
    block* const item = from.first;
    if (item == nullptr) return nullptr;
    from.first = item->next;
    --from.length;
    std::atomic<std::size_t>& sum = bytes_[index / lists_of_share];
    sum.store(sum.load(std::memory_order_relaxed) - item->capacity, std::memory_order_relaxed);
    return item;
  }
  /// False if there is no room for it.
  [[nodiscard]] bool push(std::size_t index, block& item) noexcept {
    list& to = lists_[index];
    if (to.length >= to.most) return false;
    std::atomic<std::size_t>& sum = bytes_[index / lists_of_share];
    const std::size_t now = sum.load(std::memory_order_relaxed) + item.capacity;
    if (now > limits_[index / lists_of_share]) return false;
    item.next = to.first;
    to.first = &item;
    ++to.length;
    sum.store(now, std::memory_order_relaxed);
    return true;
  }
  [[nodiscard]] bool is_full(std::size_t index) const noexcept { return lists_[index].length >= lists_[index].most; }
  [[nodiscard]] std::size_t bytes(budget share) const noexcept {
    return bytes_[static_cast<std::size_t>(share)].load(std::memory_order_relaxed);
  }

 private:
  friend class pool_core;

  struct list {
    block* first = nullptr;
    std::uint32_t length = 0;
    std::uint32_t most = 0;
  };

  void run_on_executor() noexcept override;
  void expired() noexcept override;  // time to try again to make an arena
  void retry_after(duration pause) noexcept;

  pool_core& core_;
  executor& home_;
  std::array<list, unlisted + 1> lists_{};  // the last one takes nothing
  const std::array<std::size_t, shares> limits_;
  // Written here, read by statistics() on any thread.
  std::array<std::atomic<std::size_t>, shares> bytes_{};

  // Under the core's mutex.
  bool mailed_ = false;  // run_on_executor() is to come
  bool flush_requested_ = false;
  bool retry_requested_ = false;
  allocate_operation* first_served_ = nullptr;  // whom to resume, in order
  allocate_operation* last_served_ = nullptr;
  bool registered_ = false;
  block_cache* previous_ = nullptr;
  block_cache* next_ = nullptr;
};

/// What stands behind a pool, and outlives it until the last buffer, cache and job is gone.
///
/// One mutex guards it all. Nothing that could block or call back happens under it: such duties are noted down, and
/// done once it is released.
class pool_core final : private retirement_listener {
 public:
  pool_core(std::shared_ptr<domain> home, const pool_options& options);
  pool_core(const pool_core&) = delete;
  pool_core& operator=(const pool_core&) = delete;

  /// A block at once, or null. The way without a lock is here.
  [[nodiscard]] block* take(std::size_t bytes, budget which);
  /// Back from its buffer or last pin.
  void give(block& item) noexcept;
  /// The core of a block.
  [[nodiscard]] static pool_core& of(const block& item) noexcept;

  void enqueue(allocate_operation& waiter);
  /// False if it has been served meanwhile.
  [[nodiscard]] bool withdraw(allocate_operation& waiter) noexcept;
  /// One that has been served will not be resumed.
  void abandon(allocate_operation& waiter) noexcept;

  [[nodiscard]] std::size_t limit(budget which) const noexcept { return share_of(which).limit; }
  [[nodiscard]] error impossible(std::size_t bytes, budget which) const;
  [[nodiscard]] pool_statistics statistics() const;

  /// The pool is gone. Deletes the core, now or when nobody needs it any more.
  void close() noexcept;

  /// What a cache has to do after its mail.
  struct orders {
    bool go = false;                // the pool is gone
    std::optional<duration> retry;  // call retry_growth() then
  };
  /// Does what has been mailed to a cache, on its executor.
  [[nodiscard]] orders run_mail(block_cache& cache) noexcept;
  /// Tries again to make the arenas that somebody waits for.
  void retry_growth() noexcept;
  /// Takes all that a cache holds.
  void flush(block_cache& cache) noexcept;
  void forget(block_cache& cache) noexcept;

 private:
  class growth_job;

  struct share {
    share(retirement_listener& listener, budget which, std::atomic<bool>& bypass) noexcept
        : stock(listener, static_cast<std::uint8_t>(which)), direct(bypass) {}
    depot stock;
    std::size_t limit = 0;
    std::size_t committed = 0;  // arenas here, and those that are being made or given back
    std::size_t retiring = 0;   // of these, on their way back
    bool growing = false;
    bool ahead = true;                    // may grow before anybody waits: not after a failure
    allocate_operation* first = nullptr;  // who waits, in order of coming
    allocate_operation* last = nullptr;
    std::size_t waiting = 0;
    // Executors bypass their caches, so that what is freed reaches those who wait.
    std::atomic<bool>& direct;
  };

  /// What is left to do after the mutex is released.
  struct duties {
    allocate_operation* first_served = nullptr;  // on this thread
    allocate_operation* last_served = nullptr;
    carved_arena* retired = nullptr;
    std::array<std::size_t, shares> grow_bytes{};  // 0: no
    std::array<bool, shares> grow_whole{};
    bool last = false;
  };

  template <class Function>
  void locked(Function function) noexcept;
  static void perform(pool_core* core, duties& todo) noexcept;

  [[nodiscard]] share& share_of(budget which) noexcept { return shares_[static_cast<std::size_t>(which)]; }
  [[nodiscard]] const share& share_of(budget which) const noexcept { return shares_[static_cast<std::size_t>(which)]; }
  [[nodiscard]] budget budget_of(const depot& stock) const noexcept;
  // One executor's part of a share.
  [[nodiscard]] static std::size_t cache_limit(const share& from) noexcept { return from.limit / 8; }

  // The cache that this thread used last. Whose it is is compared by value, for it may be gone: then the count of those
  // that have gone is another one too.
  struct last_cache {
    const pool_core* core = nullptr;
    const executor* home = nullptr;
    block_cache* cache = nullptr;
    std::uint64_t gone = 0;
  };
  static thread_local constinit last_cache last_;
  friend class block_cache;
  static constinit std::atomic<std::uint64_t> caches_gone_;

  // Null if it is not the one that this thread used last.
  [[nodiscard]] block_cache* last_cache_here() const noexcept;
  [[nodiscard]] block_cache* find_cache_here() noexcept;
  void give_slowly(block& item) noexcept;
  [[nodiscard]] block_cache* find_or_attach_cache(executor& here);
  [[nodiscard]] block_cache* attach_cache(executor& here);
  [[nodiscard]] block* take_slowly(std::size_t bytes, budget which) noexcept;
  void put_back(block& item, duties& todo) noexcept;
  void serve(share& from, duties& todo) noexcept;
  void resolve(share& from, allocate_operation& waiter, duties& todo) noexcept;
  void unlink(share& from, allocate_operation& waiter) noexcept;
  static void append(allocate_operation& item, allocate_operation*& first, allocate_operation*& last) noexcept;
  static void remove(allocate_operation& item, allocate_operation*& first, allocate_operation*& last) noexcept;
  static void resume_all(allocate_operation* first) noexcept;
  void want_arena(share& from, std::size_t bytes, duties& todo) noexcept;
  void grow_ahead(share& from, duties& todo) noexcept;
  void start_growth(share& from, std::size_t bytes, bool whole, duties& todo) noexcept;
  void trim(share& from, duties& todo) noexcept;
  void retire(share& from, std::unique_ptr<carved_arena> item, duties& todo) noexcept;
  void request_flush(share& from) noexcept;
  void request_flush(block_cache& cache) noexcept;
  void request_retry(share& from) noexcept;
  void mail(block_cache& cache) noexcept;
  void take_all(block_cache& cache, duties& todo) noexcept;
  [[nodiscard]] bool finished() const noexcept;

  // On a worker.
  void grow(share& into, std::size_t bytes, bool whole) noexcept;
  void grown(share& into, std::size_t bytes, std::unique_ptr<carved_arena> item, const std::string& failure) noexcept;
  void retired(depot& home, std::size_t bytes) noexcept override;
  [[nodiscard]] error no_arena(const share& into, std::size_t bytes, const std::string& failure) const;

  const std::shared_ptr<domain> domain_;
  weft::system_calls& calls_;
  const bool huge_pages_;
  std::string limit_reason_;

  mutable std::mutex mutex_;
  std::array<std::atomic<bool>, shares> direct_{};
  std::array<share, shares> shares_;
  block_cache* caches_ = nullptr;
  std::size_t jobs_ = 0;  // arenas being made or given back
  bool closed_ = false;
  page_kind pages_ = page_kind::small;
  std::string pages_reason_;
  std::string last_failure_;
  std::uint64_t failures_ = 0;
  unsigned failures_in_a_row_ = 0;
};

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cache/lease_request.hpp>
#include <weft/mr/cache/memory_monitor.hpp>
#include <weft/mr/cache_options.hpp>
#include <weft/mr/cache_statistics.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/everything.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/core/birthplace.hpp>
#include <weft/runtime/core/light_mutex.hpp>
#include <weft/runtime/core/remote_waiter.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/offload.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>

namespace weft::mr::detail {

class cache_core;

/// A link of a ring of entries, in which the first and the last are no special cases.
struct cache_link {
  cache_link* older = this;
  cache_link* newer = this;
};

/// One registration. It is held by the cache while the cache keeps it, by leases, and by operations that use their
/// slices. When the last holder has let go, the entry is deregistered and destroyed: by run_on_worker(), or at once on
/// a thread that may block.
class cache_entry final : public region_state, private cache_link {
 public:
  cache_entry(std::shared_ptr<mr::domain> from, std::shared_ptr<cache_core> core, const lease_request& wanted);
  ~cache_entry() override;

  const std::uint64_t of_allocation;  // device_allocation::id that was asked for; 0: host memory
  std::uint64_t generation = 0;       // constant once it is leased
  // Under the core's mutex.
  bool stale = false;                // not to be leased again: invalidated, not watchable, or freed device memory
  bool watched = false;              // the monitor watches all of it, or begins to; cleared when any of it is unmapped
  cache_entry* next_dead = nullptr;  // in a list of entries to be dropped or destroyed

  [[nodiscard]] cache_core& core() const noexcept { return *core_; }

 private:
  friend class cache_core;

  // No kept entry contains another of the same usage, so their beginnings and their ends are in the same order: if any
  // entry contains a range, it is the last one that begins at or before the range.
  struct by_place {
    using is_transparent = void;
    struct place {
      mr::usage purpose;
      const std::byte* begin;
    };
    [[nodiscard]] static place of(const cache_entry* item) noexcept {
      return {item->options.usage, item->bytes.data()};
    }
    [[nodiscard]] static place of(const place& item) noexcept { return item; }
    template <class A, class B>
    [[nodiscard]] bool operator()(const A& a, const B& b) const noexcept {
      const place left = of(a);
      const place right = of(b);
      if (left.purpose != right.purpose) return bits(left.purpose) < bits(right.purpose);
      return std::less<>()(left.begin, right.begin);
    }
  };
  [[nodiscard]] static std::size_t size_class_of(const cache_entry& item) noexcept {
    return static_cast<std::size_t>(std::bit_width(item.bytes.size()));
  }
  // Entries that are only leased may contain one another, so they are sorted by size first: among entries of about the
  // same size, all that overlap a range begin near it.
  struct by_size {
    using is_transparent = void;
    struct place {
      std::size_t size_class;
      const std::byte* begin;
    };
    [[nodiscard]] static place of(const cache_entry* item) noexcept {
      return {size_class_of(*item), item->bytes.data()};
    }
    [[nodiscard]] static place of(const place& item) noexcept { return item; }
    template <class A, class B>
    [[nodiscard]] bool operator()(const A& a, const B& b) const noexcept {
      const place left = of(a);
      const place right = of(b);
      if (left.size_class != right.size_class) return left.size_class < right.size_class;
      return std::less<>()(left.begin, right.begin);
    }
  };
  using kept_index = std::multiset<cache_entry*, by_place>;
  using leased_index = std::multiset<cache_entry*, by_size>;
  enum class place : std::uint8_t { nowhere, leased, kept };

  const std::shared_ptr<cache_core> core_;
  // Under the core's mutex. The node is made and destroyed with the entry, because nothing under the mutex may allocate
  // or free.
  place listed_ = place::nowhere;
  bool leased_again_ = false;   // a lease has found the entry since it was last put at the end of `order_`
  kept_index::node_type node_;  // empty while the entry is in an index
  kept_index::iterator kept_;
  leased_index::iterator leased_;
};

/// A registration in progress on a worker, and the tasks that wait for it. Under the core's mutex, except that the
/// worker alone registers and deregisters the entry, without the mutex.
class cache_flight final : public weft::detail::worker_job, public weft::detail::list_hook<cache_flight> {
 public:
  cache_flight(std::shared_ptr<cache_core> core, std::unique_ptr<cache_entry> entry) noexcept
      : core_(std::move(core)), entry_(std::move(entry)) {}

 private:
  friend class cache_core;
  void run() noexcept override;

  const std::shared_ptr<cache_core> core_;
  std::unique_ptr<cache_entry> entry_;
  bool unwatched_ = false;  // true: a later lease must not join, because it may be for other pages
  weft::detail::remote_waiters waiters_;
};

/// The state behind a cache. Nothing that allocates, frees or calls back happens under the mutex, because unmapping
/// watched memory waits for the monitor, which waits for the mutex.
class cache_core final : public std::enable_shared_from_this<cache_core>, private memory_monitor::listener {
 public:
  cache_core(std::shared_ptr<domain> home, const cache_options& options);
  cache_core(const cache_core&) = delete;
  cache_core& operator=(const cache_core&) = delete;

  /// Throws if the cache cannot lease `memory` for `purpose`.
  void check(std::span<std::byte> memory, mr::usage purpose) const {
    constexpr mr::usage refused = ~known_usages | peer_usages;
    if (memory.empty() || memory.data() == nullptr || overlaps(purpose, refused) || is_parents() ||
        is_everything(memory) || wraps_around(memory))
      refuse(memory, purpose);
  }
  [[noreturn]] void refuse(std::span<std::byte> memory, mr::usage purpose) const;
  /// Finds a kept registration that serves the request, and adds a holder. Null if there is none, or while a change of
  /// watched memory may still be unreported.
  [[nodiscard]] cache_entry* find(const lease_request& wanted) noexcept {
    if (!knows_all()) return nullptr;
    const std::lock_guard lock(mutex_);
    return look_up(wanted);
  }
  /// Makes the waiter wait. False if it was served at once. Throws std::bad_alloc, and the errors of
  /// worker_pool::submit(); then the waiter does not wait.
  [[nodiscard]] bool wait(lease_request& waiter);
  /// Withdraws the waiter. False if it has been served meanwhile.
  [[nodiscard]] bool give_up(lease_request& waiter) noexcept;

  void invalidate(std::span<const std::byte> range) noexcept;
  /// See lease::current(). Takes the mutex, because the monitor may have read a change but not yet marked the entry.
  [[nodiscard]] bool is_current(const cache_entry& item) const noexcept;
  void clear() noexcept;
  void close() noexcept;
  /// Whether this process is a child of the one that made the cache: then not even the mutex may be used.
  [[nodiscard]] bool is_parents() const noexcept { return birthplace_.is_parents(); }
  /// Subtracts the entry's size from the statistics. Called without the mutex.
  void deregistered(const cache_entry& item) noexcept;
  /// Removes an entry from its index before the entry is destroyed, and tries to end its watch. Called without the
  /// mutex.
  void forget(cache_entry& item) noexcept;
  [[nodiscard]] cache_statistics statistics() const noexcept;

 private:
  friend class cache_flight;

  using place = cache_entry::kept_index::iterator;

  // The slot of `recent_` for an entry that begins at `begin`.
  [[nodiscard]] cache_entry*& recent(mr::usage purpose, const std::byte* begin) noexcept {
    const auto mixed = (reinterpret_cast<std::uintptr_t>(begin) ^ bits(purpose)) * 0x9E3779B97F4A7C15U;
    return recent_[mixed >> 52];
  }
  void forget_recent(const cache_entry& item) noexcept;
  [[nodiscard]] cache_entry* hold(cache_entry& item) noexcept {
    item.holders.fetch_add(1, std::memory_order_relaxed);
    item.leased_again_ = true;
    ++counts_.hits;
    return &item;
  }
  [[nodiscard]] place last_before(mr::usage purpose, const std::byte* begin) noexcept;
  [[nodiscard]] cache_entry* search(const lease_request& wanted) noexcept;
  [[nodiscard]] static bool is_of_its_allocation(const cache_entry& item, const lease_request& wanted) noexcept {
    return item.of_allocation == wanted.allocation_;
  }
  // At most one kept entry of a usage begins at an address, and it is the one that search() would try.
  [[nodiscard]] cache_entry* look_up(const lease_request& wanted) noexcept {
    const std::span<const std::byte> memory = wanted.memory_;
    cache_entry* const item = recent(wanted.usage_, memory.data());
    if (item == nullptr || item->bytes.data() != memory.data() || item->options.usage != wanted.usage_) {
      return search(wanted);
    }
    return item->bytes.size() >= memory.size() && is_of_its_allocation(*item, wanted) ? hold(*item) : nullptr;
  }
  void forget_former_allocations(const lease_request& wanted) noexcept;
  // False while a change of watched memory may still be unreported. Then an entry that the change makes stale still
  // looks current, although another thread may already have mapped other memory at its addresses. Such a thread maps
  // its memory before it asks for a lease, so a check made for the lease finds the change.
  [[nodiscard]] bool knows_all() const noexcept { return !monitored_ || monitor_->all_told(); }
  [[nodiscard]] cache_flight* flight_for(const lease_request& waiter) const noexcept;
  static void join(cache_flight& flight, lease_request& waiter) noexcept;

  void list(cache_entry& item) noexcept;
  void unlist(cache_entry& item) noexcept;
  void append(cache_link& item) noexcept {
    item.older = order_.older;
    item.newer = &order_;
    order_.older->newer = &item;
    order_.older = &item;
  }
  static void take_out(const cache_link& item) noexcept {
    item.older->newer = item.newer;
    item.newer->older = item.older;
  }
  [[nodiscard]] cache_entry& oldest() noexcept { return static_cast<cache_entry&>(*order_.newer); }
  // Stops keeping an entry. If nobody holds it any more, puts it on `dead`.
  void drop(cache_entry& item, cache_entry*& dead) noexcept;
  template <class Visit>
  void visit_overlapping(std::span<const std::byte> range, const Visit& visit) const noexcept;
  template <class Predicate>
  void drop_stale_if(std::span<const std::byte> range, bool still_mapped, cache_entry*& dead,
                     const Predicate& is_stale) noexcept;
  void drop_stale(std::span<const std::byte> range, bool still_mapped, cache_entry*& dead) noexcept;
  [[nodiscard]] bool keep(cache_entry& item, cache_entry*& dead) noexcept;
  [[nodiscard]] bool make_room(std::size_t bytes, cache_entry*& dead) noexcept;
  [[nodiscard]] cache_entry* take_idle() noexcept;
  static void bury(cache_entry* dead) noexcept;       // destroys entries by run_on_worker(); called without the mutex
  static void bury_here(cache_entry* dead) noexcept;  // destroys entries on this thread, which may block

  // These may block: for workers. But any thread that destroys an entry calls unwatch(), and wait() calls land() if no
  // worker can be started.
  void perform(std::unique_ptr<cache_flight> flight) noexcept;
  [[nodiscard]] bool watch(cache_flight& flight) noexcept;
  void unwatch(cache_entry& item) noexcept;
  [[nodiscard]] std::optional<error> enroll(cache_entry& item) noexcept;
  [[nodiscard]] bool land(cache_flight& flight, const std::optional<error>& failure, bool watched) noexcept;
  [[nodiscard]] bool settle(cache_flight& flight, const std::optional<error>& failure, bool watched,
                            weft::detail::remote_wake_ups& served, cache_entry*& dead) noexcept;

  void begin() noexcept override { mutex_.lock(); }
  void changed(std::span<const std::byte> range, bool still_mapped) noexcept override;
  void end() noexcept override { mutex_.unlock(); }
  void clean_up() noexcept override;
  [[nodiscard]] std::span<const std::byte> unneeded(std::span<const std::byte> range) const noexcept override;

  const std::shared_ptr<domain> domain_;
  const std::size_t max_bytes_;
  const std::size_t max_regions_;
  const bool monitored_;
  const weft::detail::birthplace birthplace_;
  weft::worker_pool& workers_;

  mutable weft::detail::light_mutex mutex_;
  cache_entry::kept_index kept_;
  cache_entry::leased_index leased_;  // entries that are not kept: leased, or being destroyed
  // The kept entries in the order of eviction: order_.newer is the first. An entry that was leased again meanwhile, or
  // is still in use, moves to the end when its turn comes, so that a lease need not touch the entry's neighbours.
  cache_link order_;
  // Some of the kept entries, hashed by usage and first byte: these need no search.
  std::array<cache_entry*, 4096> recent_{};
  std::size_t bytes_ = 0;
  std::uint64_t registrations_ = 0;
  weft::detail::intrusive_list<cache_flight> flights_;
  cache_entry* dead_ = nullptr;  // entries dropped by changed(), which must not free them: clean_up() or close() does
  bool closed_ = false;
  cache_statistics counts_;
  std::atomic<std::size_t> registered_bytes_{0};

  // Held while the watched ranges are changed, and while close() takes the monitor away. Locked before `mutex_`.
  std::mutex watching_;
  const cache_entry* unwatching_ = nullptr;
  std::unique_ptr<memory_monitor> monitor_;  // null: no monitor, or closed. The last member, to be destroyed first
};

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/allocate_request.hpp>
#include <weft/mr/pool/block_shelf.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace weft::mr::detail {

/// The part of a pool on one executor: the shelf, and a mailbox through which other threads serve tasks that wait
/// there. Mail goes to the cache and not to the task, so that the task may be destroyed meanwhile. The derived class
/// opens the mail in run_on_executor().
class block_cache : public weft::detail::list_hook<block_cache>, protected weft::detail::remote_work {
 public:
  block_cache(executor_core& home, std::unique_ptr<block_shelf> shelf) noexcept
      : home_(home), shelf_(std::move(shelf)) {}
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;

  [[nodiscard]] block_shelf& shelf() noexcept { return *shelf_; }

  // Under the core's mutex.

  /// Sends a waiter that has been served to the executor, which resumes its task.
  void send(allocate_request& served) noexcept;
  /// Undoes send().
  static void withdraw(allocate_request& served) noexcept {
    weft::detail::intrusive_list<allocate_request>::remove(served);
  }
  /// Asks the executor for all blocks on the shelf.
  void ask_for_blocks() noexcept;
  /// Asks the executor to try again to make an arena, after a pause.
  void ask_for_retry() noexcept;

  struct requests {
    bool flush = false;
    bool retry = false;
  };
  /// Takes the mail: moves the waiters that have been served to `served`, in order, and returns the requests.
  [[nodiscard]] requests open_mail(weft::detail::intrusive_list<allocate_request>& served) noexcept;

 protected:
  ~block_cache() = default;

  executor_core& home_;

 private:
  friend class block_caches;

  void submit() noexcept;

  std::unique_ptr<block_shelf> shelf_;
  bool submitted_ = false;  // run_on_executor() is scheduled
  requests requested_;
  weft::detail::intrusive_list<allocate_request> served_;
};

/// All caches of a pool, and the shelves that no executor uses now. Under the core's mutex, except is_direct().
class block_caches {
 public:
  /// From any thread: whether executors cache no blocks of a budget, so that freed blocks reach the waiters.
  [[nodiscard]] bool is_direct(budget which) const noexcept {
    return direct_[index_of(which)].load(std::memory_order_relaxed);
  }

  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  /// Takes a shelf of an executor that has gone; null if there is none.
  [[nodiscard]] std::unique_ptr<block_shelf> reuse_shelf() noexcept;
  /// Keeps a shelf for the next executor. Shelves live as long as the pool's core, because blocks in use may refer to
  /// them.
  void keep_shelf(std::unique_ptr<block_shelf> item) noexcept;
  void add(block_cache& item) noexcept;
  /// Takes the shelf of a cache that is being destroyed. The shelf must be empty.
  void remove(block_cache& item) noexcept;
  /// Takes the shelf of a cache that was not added.
  void discard(block_cache& item) noexcept { keep_shelf(std::move(item.shelf_)); }

  /// Makes a budget direct, and asks all executors for their blocks. Does nothing if it is direct already.
  void make_direct(budget which) noexcept;
  /// Lets executors cache blocks of a budget again.
  void allow(budget which) noexcept;
  /// Asks all executors for their blocks.
  void ask_for_blocks() noexcept;
  /// The bytes of a budget that executors hold.
  [[nodiscard]] std::size_t bytes(budget which) const noexcept;

 private:
  std::array<std::atomic<bool>, budgets> direct_{};
  weft::detail::intrusive_list<block_cache> all_;
  std::unique_ptr<block_shelf> idle_shelves_;
};

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/sync/event.hpp>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>

namespace weft::net::verbs {

class bound_windows;

/// A memory window, and the region that it is bound to if the window owns it.
///
/// Who may touch what the device has of it:
///   unmade   a worker, which makes it
///   open     the executor, to bind it, and whoever takes it back first
///   going    the thread that takes it back: a worker that revokes it, or the one that destroys the queue pair
///   gone     nobody
///
/// Revoking it is a job for a worker, whose end comes back by mail: then it is forgotten. One that has been invalidated
/// lets nobody in, and is kept for the next exposure where the device can bind it again; it stays open meanwhile.
class bound_window final : private weft::detail::worker_job,
                           private weft::detail::remote_work,
                           private mr::detail::last_use {
 public:
  explicit bound_window(bound_windows& all) noexcept : all_(all) {}

  [[nodiscard]] ibv_mw& window() const noexcept { return *window_; }
  [[nodiscard]] ibv_mr* own_region() const noexcept { return own_region_; }
  [[nodiscard]] bool is_made() const noexcept { return window_ != nullptr; }
  /// The peer has got this key. If the window is a region's, whoever lets go of that may have to close it on the spot.
  void opened(std::uint32_t key, bool of_region) noexcept;
  [[nodiscard]] bool is_of_region() const noexcept { return of_region_; }
  [[nodiscard]] bool is_invalidated() const noexcept { return invalidated_; }

 private:
  friend class bound_windows;
  enum class state : std::uint8_t { unmade, open, going, gone };
  using key_index = std::multimap<std::uint32_t, bound_window*>;

  void run() noexcept override;
  void run_on_executor() noexcept override;
  [[nodiscard]] bool withdraw() noexcept override { return workers_ != nullptr && workers_->withdraw(*this); }
  void run_here() noexcept override { run(); }

  bound_windows& all_;
  ibv_mw* window_ = nullptr;
  ibv_mr* own_region_ = nullptr;
  std::list<bound_window>::iterator self_;
  key_index::node_type unkeyed_;  // its place among the keys, while the peer has none
  key_index::iterator keyed_;     // while it has one
  std::uint32_t bindings_ = 0;
  bool of_region_ = false;
  bool invalidated_ = false;  // by the peer
  bool revoking_ = false;
  revocation* who_ = nullptr;
  worker_pool* workers_ = nullptr;
  state now_ = state::unmade;  // under the mutex
  bool kept_ = false;          // by the device, which has refused to take it back
};

/// The windows that were bound through one queue pair. All calls on its executor, unless it says otherwise.
class bound_windows {
 public:
  /// How many are kept to be bound again.
  static constexpr std::size_t most_free = 8;

  class owner {
   public:
    /// From any thread, after the device has refused to end a window: shuts peers out in another way.
    virtual void shut_out_peers(int result) noexcept = 0;
    /// Follows on the executor.
    virtual void on_window_kept() noexcept = 0;

   protected:
    ~owner() = default;
  };

  bound_windows(executor_core& home, const device& on, owner& of) noexcept : home_(home), device_(on), owner_(of) {}
  bound_windows(const bound_windows&) = delete;
  bound_windows& operator=(const bound_windows&) = delete;

  /// One that is kept, or else a place for one that is not made yet. Throws std::bad_alloc.
  [[nodiscard]] bound_window& add();
  /// Makes it, on a worker. Where the device looks at the bounds of the region alone, it gets a region of its own.
  /// Throws weft::error, and then it has not been made.
  void make(bound_window& item, std::span<std::byte> memory, mr::access rights);

  /// The one with that key if it is still here, and nobody takes it back.
  [[nodiscard]] bound_window* find(std::uint32_t key) noexcept;
  /// The peer has invalidated that key.
  void invalidated(std::uint32_t key) noexcept;
  /// Keeps one that has been invalidated, to be bound again. False if there are enough, or it has been bound so often
  /// that its keys begin to come again.
  [[nodiscard]] bool keep(bound_window& item) noexcept;

  /// Takes one back by its key, if it is still here, or by itself: `who` is told when nobody uses it any more. A worker
  /// does it, unless none can be had, or the executor does not run and would not be held up.
  void revoke(std::uint32_t key, revocation& who) noexcept;
  void revoke(bound_window& item, revocation& who) noexcept;
  /// The same at once, also if somebody else is at it; nobody is told.
  void revoke_now(bound_window& item) noexcept;
  /// On a worker: takes all back that are there. When it returns, nobody is at one any more.
  void destroy_all() noexcept;

  /// Whether one is being revoked of which its owner has not been told.
  [[nodiscard]] bool revoking() const noexcept { return revoking_ != 0; }
  /// Returns when that may have changed.
  [[nodiscard]] event::wait_operation next_revoked() noexcept {
    revoked_.reset();
    return revoked_.wait();
  }

 private:
  friend class bound_window;
  void begin(bound_window& item, revocation* who, worker_pool* workers) noexcept;
  [[nodiscard]] worker_pool* find_workers() const noexcept;
  void take_back(bound_window& item) noexcept;
  [[nodiscard]] int deallocate(const bound_window& item) noexcept;
  void ended(bound_window& item) noexcept;
  void take_key(bound_window& item) noexcept;
  [[nodiscard]] bool is_gone(const bound_window& item) noexcept;
  void forget(bound_window& item) noexcept;

  executor_core& home_;
  const device& device_;
  owner& owner_;
  std::mutex mutex_;  // over the list, and the state of each
  std::condition_variable changed_;
  std::list<bound_window> items_;
  bound_window::key_index keys_;  // that peers have, of windows that nobody takes back; only for the executor
  std::array<bound_window*, most_free> free_{};  // kept for the next exposures
  std::size_t free_count_ = 0;
  std::size_t revoking_ = 0;
  event revoked_;
};

}  // namespace weft::net::verbs

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

/// A memory window, and the region to which it is bound if the window owns that region.
///
/// Who may use the device's objects:
///   unmade   a worker, which makes them
///   open     the executor, to bind the window, and the first thread that revokes it
///   going    the thread that deallocates them: the one that revokes, or the one that destroys the queue pair
///   gone     nobody
///
/// A worker revokes the window, then submits it to the executor (remote_work), which forgets it. An invalidated window
/// lets nobody in. If the device can bind such windows again, a few are kept, in the state open, for the next
/// exposures.
class bound_window final : private weft::detail::worker_job,
                           private weft::detail::remote_work,
                           private mr::detail::last_use {
 public:
  explicit bound_window(bound_windows& all) noexcept : all_(all) {}

  [[nodiscard]] ibv_mw& window() const noexcept { return *window_; }
  [[nodiscard]] ibv_mr* own_region() const noexcept { return own_region_; }
  [[nodiscard]] bool is_made() const noexcept { return window_ != nullptr; }
  /// Records the key for the peer. `of_region`: a thread that releases the region may revoke the window synchronously.
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
  key_index::node_type unkeyed_;  // its node of keys_, while the peer has no key
  key_index::iterator keyed_;     // its place in keys_, while the peer has a key
  std::uint32_t bindings_ = 0;
  bool of_region_ = false;
  bool invalidated_ = false;  // by the peer
  bool revoking_ = false;
  revocation* who_ = nullptr;
  worker_pool* workers_ = nullptr;
  state now_ = state::unmade;  // guarded by the mutex
  bool kept_ = false;          // the device has refused to deallocate it
};

/// The windows that were bound through one queue pair. All calls on its executor, unless stated otherwise.
class bound_windows {
 public:
  /// The most invalidated windows that are kept to be bound again.
  static constexpr std::size_t most_free = 8;

  class owner {
   public:
    /// Shuts peers out in another way, because the device has refused to deallocate a window. From any thread.
    virtual void shut_out_peers(int result) noexcept = 0;
    /// Learns, on the executor, that shut_out_peers() was called for a window.
    virtual void on_window_kept() noexcept = 0;

   protected:
    ~owner() = default;
  };

  bound_windows(executor_core& home, const device& on, owner& of) noexcept : home_(home), device_(on), owner_(of) {}
  bound_windows(const bound_windows&) = delete;
  bound_windows& operator=(const bound_windows&) = delete;

  /// Returns a kept window, or else adds one that is still to be made. Throws std::bad_alloc.
  [[nodiscard]] bound_window& add();
  /// Allocates the window, on a worker. If the device checks only the bounds of the region, the window gets a region of
  /// its own. Throws weft::error, and then nothing has been allocated.
  void make(bound_window& item, std::span<std::byte> memory, mr::access rights);

  /// The window with that key; null if it is gone, or being revoked.
  [[nodiscard]] bound_window* find(std::uint32_t key) noexcept;
  /// Notes that the peer has invalidated that key.
  void invalidated(std::uint32_t key) noexcept;
  /// Keeps an invalidated window, to be bound again. False if enough are kept, or if the window owns its region, is not
  /// open, or has been bound so often that its keys would soon repeat.
  [[nodiscard]] bool keep(bound_window& item) noexcept;

  /// Revokes a window, and calls who.revoked() once nobody uses it any more; at once if no window has the key. A worker
  /// revokes it, or the caller if there is no worker, or if the executor does not run, when blocking does no harm.
  void revoke(std::uint32_t key, revocation& who) noexcept;
  void revoke(bound_window& item, revocation& who) noexcept;
  /// Revokes a window synchronously, even if another revocation is in progress, whose `who` is then not notified.
  void revoke_now(bound_window& item) noexcept;
  /// Deallocates all windows. Called on a worker, if there is one. When it returns, no thread uses a window any more.
  void destroy_all() noexcept;

  /// Whether a revocation is in progress.
  [[nodiscard]] bool revoking() const noexcept { return revoking_ != 0; }
  /// Yields a wait that ends when revoking() may have changed.
  event::wait_operation next_revoked() noexcept {
    revoked_.reset();
    return revoked_.wait();
  }

 private:
  friend class bound_window;
  void begin(bound_window& item, revocation* who, worker_pool* workers) noexcept;
  void take_back(bound_window& item) noexcept;
  [[nodiscard]] int deallocate(const bound_window& item) noexcept;
  void ended(bound_window& item) noexcept;
  void take_key(bound_window& item) noexcept;
  [[nodiscard]] bool is_gone(const bound_window& item) noexcept;
  void forget(bound_window& item) noexcept;

  executor_core& home_;
  const device& device_;
  owner& owner_;
  std::mutex mutex_;  // guards the list, and the state of each window
  std::condition_variable changed_;
  std::list<bound_window> items_;
  bound_window::key_index keys_;  // of windows that are open to the peer and not being revoked; for the executor only
  std::array<bound_window*, most_free> free_{};  // kept for the next exposures
  std::size_t free_count_ = 0;
  std::size_t revoking_ = 0;
  event revoked_;
};

}  // namespace weft::net::verbs

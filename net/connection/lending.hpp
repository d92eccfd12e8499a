// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/region.hpp>
#include <weft/net/exposure_end.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/timer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace weft::net {

class link_keys;
class loan_watch;
class recall;

/// A loan of memory, which a peer may use by a key. This object is made before the key, with its place in the index, so
/// that neither the beginning nor the end of the loan allocates.
///
/// Who owns this object and the memory:
///   lent     an exposure
///   handed   the link's executor, in its mailbox: the owner let go on another thread
///   retired  the connection, until the peer revokes the key or is confirmed to be done, the deadline comes, or the
///            connection ends
/// When nobody owns it any more, it belongs to the link until the peer can no longer touch the memory.
class lending final : private weft::detail::remote_work, private weft::detail::timer, private revocation {
 public:
  /// Called on the thread of the link that will be asked for the key. The key is taken back at `until`, unless that is
  /// time_point::max(). Throws std::bad_alloc.
  lending(std::shared_ptr<link_keys> keys, time_point until);
  ~lending();

  [[nodiscard]] const link_keys& keys() const noexcept { return *keys_; }
  /// Holds the memory until the key has been revoked.
  void hold(mr::buffer memory) noexcept { buffer_ = std::move(memory); }
  void hold(mr::region_pin memory) noexcept { region_ = std::move(memory); }
  /// Sets a key of mr::detail::owner_keys, which takes the place of the link's.
  void be_of_device(std::uint64_t key) noexcept {
    owners_key_ = key;
    is_of_link_ = false;
  }
  /// Adds a key of mr::detail::owner_keys to the link's, for persistent flushes.
  void add_owners_key(std::uint64_t key) noexcept { owners_key_ = key; }
  /// The reason why the loan is over; exposure_end::open before that. On the thread of the link.
  [[nodiscard]] exposure_end ended_by() const noexcept { return phase_ == phase::over ? end_ : exposure_end::open; }

 private:
  friend class link_keys;
  friend class loan_watch;
  friend class recall;
  void run_on_executor() noexcept override;
  void expired() noexcept override;
  [[nodiscard]] mr::region_pin take_pin() noexcept override { return std::move(region_); }
  [[nodiscard]] bool at_deadline() const noexcept override { return end_ == exposure_end::deadline; }
  void revoked() noexcept override;
  void tell() noexcept;

  std::shared_ptr<link_keys> keys_;
  std::uint64_t key_ = 0;
  const std::uint32_t link_;      // number of the link that gives the key
  std::uint64_t owners_key_ = 0;  // a key of owner_keys; 0: none, or closed
  bool is_of_link_ = true;        // key_ is a key of the link; false: it is owners_key_
  std::size_t bytes_ = 0;
  mr::buffer buffer_;
  mr::region_pin region_;
  const bool has_deadline_;
  bool retiring_ = false;  // it was handed over to be retired, not to be ended

  struct by_key {
    using is_transparent = void;
    [[nodiscard]] bool operator()(const lending* a, const lending* b) const noexcept {
      return a->number() < b->number();
    }
    [[nodiscard]] bool operator()(const lending* a, std::uint64_t b) const noexcept { return a->number() < b; }
    [[nodiscard]] bool operator()(std::uint64_t a, const lending* b) const noexcept { return a < b->number(); }
  };
  using index = std::multiset<lending*, by_key>;
  [[nodiscard]] std::uint64_t number() const noexcept { return key_; }

  // opening  the link makes the key, or has not been asked
  // open     the peer may use the memory
  // closing  the link revokes the key
  // over     the peer can no longer touch the memory
  enum class phase : std::uint8_t { opening, open, closing, over };

  // For link_keys, on the thread of the link.
  phase phase_ = phase::opening;
  exposure_end end_ = exposure_end::open;  // the reason, from phase::closing on
  bool is_owned_ = true;                   // an exposure owns this object, or its mail has not been taken yet
  index::node_type unlisted_;              // empty while it is listed
  index::iterator listed_;
  lending* next_ = nullptr;  // in detach(): the next in its list of retired lendings
  bool retired_ = false;
  bool confirmed_ = false;  // the peer is done with the memory, but the owner has not let go yet
  loan_watch* watches_ = nullptr;
  recall* recall_ = nullptr;
};

/// Waits until the peer can no longer touch the memory of a lending. The lending may be destroyed at that moment. On
/// the thread of the link.
class loan_watch {
 public:
  explicit loan_watch(lending& of) noexcept;
  loan_watch(const loan_watch&) = delete;
  loan_watch& operator=(const loan_watch&) = delete;
  ~loan_watch();

  [[nodiscard]] bool is_over() const noexcept { return of_ == nullptr; }
  /// The reason, once the loan is over.
  [[nodiscard]] exposure_end end() const noexcept { return end_; }
  /// Returns when the loan is over.
  event::wait_operation wait() noexcept { return over_.wait(); }

 protected:
  lending* of_;

 private:
  friend class lending;
  loan_watch* next_ = nullptr;
  exposure_end end_ = exposure_end::open;
  event over_;
};

/// Takes lent memory back, and waits until the peer can no longer touch it. If this object is destroyed before that,
/// the memory is released as after link_keys::end().
class recall final : public loan_watch {
 public:
  /// Takes ownership of `what`.
  explicit recall(lending* what) noexcept;
  ~recall() {
    if (of_ != nullptr) of_->recall_ = nullptr;
  }

  [[nodiscard]] mr::buffer take_buffer() noexcept { return std::move(buffer_); }

 private:
  friend class lending;
  mr::buffer buffer_;
};

/// The keys that a connection's link has given the peer. Exposures share this object, because they may outlive the link
/// and end on any thread. The keys of a link end with the link; a link that is attached later gives other keys.
class link_keys {
 public:
  /// On the executor of the connection. `counters` must live until detach().
  explicit link_keys(live_statistics& counters) noexcept : home_(*executor_core::current()), counters_(counters) {}
  link_keys(const link_keys&) = delete;
  link_keys& operator=(const link_keys&) = delete;

  /// Ends a lending. On any thread; as long as the link is attached, hands the lending over to the link's thread.
  /// Revokes the key, on a worker if that blocks, before it releases the memory, because the peer must not reach memory
  /// that is about to be reused.
  static void end(lending* what) noexcept { hand_over(what, false); }
  /// Keeps key and memory until confirm() or invalidated(), the deadline, or the end of the link. On any thread.
  static void retire(lending* what) noexcept { hand_over(what, true); }

  /// Whether the caller runs on the connection's executor, which may be gone.
  [[nodiscard]] bool on_own_thread() const noexcept { return executor_core::current() == &home_; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }

  // On the link's thread only.

  /// Attaches a link; no other may be attached.
  void attach(link& target) noexcept;
  /// Begins a loan: the peer may now use `bytes` bytes by this key. The loan is over at once if the link has been
  /// detached meanwhile. Returns false if the deadline has passed: then the caller must end the lending.
  [[nodiscard]] bool opened(lending& what, std::uint64_t key, std::size_t bytes) noexcept;
  /// Ends the lending of a key that the peer is done with: now if it is retired, otherwise when it is.
  void confirm(std::uint64_t key) noexcept;
  /// Ends the lending of a key that the peer has revoked.
  void invalidated(std::uint64_t key) noexcept;
  /// Ends all lendings, and releases retired memory, because the link has closed and its keys open nothing.
  void detach() noexcept;
  /// Notes that the connection is destroyed. A task checks abandoned() when it begins, before it touches the
  /// connection.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_release); }

 private:
  friend class lending;
  static void hand_over(lending* what, bool retiring) noexcept;
  /// Submits the lending to the executor's thread. False if the caller has to take() it on this thread.
  [[nodiscard]] bool mail(lending& what) noexcept;
  void take(lending* what) noexcept;
  /// The link that has given the key; null if it is no longer attached.
  [[nodiscard]] link* opener_of(const lending& what) const noexcept;
  [[nodiscard]] lending* find(std::uint64_t key) noexcept;
  void take_back(lending* what, exposure_end why) noexcept;
  void unlist(lending& what) noexcept { what.unlisted_ = listed_.extract(what.listed_); }
  static void end_copies(lending& what) noexcept;

  executor_core& home_;  // alive while the link is
  std::mutex mutex_;     // held to find the link and mail to its executor, and to attach or detach the link
  // Null: there is no link, and no key opens anything. Written under the mutex.
  std::atomic<link*> link_{nullptr};
  std::atomic<std::uint32_t> attached_{0};  // links so far; written under the mutex
  std::atomic<bool> abandoned_{false};
  live_statistics& counters_;
  // All open lendings, to find the one whose key the peer revokes or is done with. Includes those that exposures still
  // own, because the peer may be done before the owner lets go.
  lending::index listed_;
};

}  // namespace weft::net

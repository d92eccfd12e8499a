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

/// Memory that a peer may use by one key. It is made before the key is, with its place among the others of its link, so
/// that nothing that begins or ends the loan allocates.
///
/// Who owns it, and the memory:
///   lent     an exposure
///   handed   the executor of the link, in its mail: the owner has let go on another thread
///   retired  the connection, until the peer has confirmed that it is done, the deadline comes, or the connection ends
/// and once nobody owns it, it is the link's until the peer touches the memory no more.
class lending final : private weft::detail::remote_work, private weft::detail::timer, private revocation {
 public:
  /// On the thread of the link that will be asked for the key, which is taken back at `until` if that is not the end of
  /// time. Throws std::bad_alloc.
  lending(std::shared_ptr<link_keys> keys, time_point until);
  ~lending();

  [[nodiscard]] const link_keys& keys() const noexcept { return *keys_; }
  /// Holds the memory until the key has been revoked.
  void hold(mr::buffer memory) noexcept { buffer_ = std::move(memory); }
  void hold(mr::region_pin memory) noexcept { region_ = std::move(memory); }
  /// The key is of mr::detail::device_keys, and no link's.
  void be_of_device(std::uint64_t key) noexcept { device_key_ = key; }
  /// On the thread of the link.
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
  mr::remote_key key_;
  const std::uint32_t link_;      // which of the links gives the key, by their number
  std::uint64_t device_key_ = 0;  // of memory of a device; 0: none, or closed
  std::size_t bytes_ = 0;
  mr::buffer buffer_;
  mr::region_pin region_;
  const bool has_deadline_;
  bool retiring_ = false;  // what it was handed over for: to be retired, or to end

  struct by_key {
    using is_transparent = void;
    [[nodiscard]] bool operator()(const lending* a, const lending* b) const noexcept {
      return a->number() < b->number();
    }
    [[nodiscard]] bool operator()(const lending* a, std::uint64_t b) const noexcept { return a->number() < b; }
    [[nodiscard]] bool operator()(std::uint64_t a, const lending* b) const noexcept { return a < b->number(); }
  };
  using index = std::multiset<lending*, by_key>;
  [[nodiscard]] std::uint64_t number() const noexcept { return key_.number(); }

  // opening  the link makes the key, or has not been asked
  // open     the peer may use the memory
  // closing  the link takes the key back
  // over     the peer touches the memory no more
  enum class phase : std::uint8_t { opening, open, closing, over };

  // Of link_keys, on the thread of the link.
  phase phase_ = phase::opening;
  exposure_end end_ = exposure_end::open;  // what has taken it back, from phase::closing on
  bool is_owned_ = true;                   // by an exposure, or on the way from there
  index::node_type unlisted_;              // empty while it is listed
  index::iterator listed_;
  lending* next_ = nullptr;  // while the link is detached
  bool retired_ = false;
  bool confirmed_ = false;  // the peer is done with it, and its owner has not let go yet
  loan_watch* watches_ = nullptr;
  recall* recall_ = nullptr;
};

/// Hears when the peer touches the memory no more, also if the lending goes then. On the thread of the link.
class loan_watch {
 public:
  explicit loan_watch(lending& of) noexcept;
  loan_watch(const loan_watch&) = delete;
  loan_watch& operator=(const loan_watch&) = delete;
  ~loan_watch();

  [[nodiscard]] bool is_over() const noexcept { return of_ == nullptr; }
  /// What has taken it back, once it is over.
  [[nodiscard]] exposure_end end() const noexcept { return end_; }
  /// Returns when it is over.
  [[nodiscard]] event::wait_operation wait() noexcept { return over_.wait(); }

 protected:
  lending* of_;

 private:
  friend class lending;
  loan_watch* next_ = nullptr;
  exposure_end end_ = exposure_end::open;
  event over_;
};

/// Takes back what was lent, and waits until the peer touches it no more. If it goes before that, the memory goes where
/// that of a lending does.
class recall final : public loan_watch {
 public:
  /// `what` is owned.
  explicit recall(lending* what) noexcept;
  ~recall() {
    if (of_ != nullptr) of_->recall_ = nullptr;
  }

  [[nodiscard]] mr::buffer take_buffer() noexcept { return std::move(buffer_); }

 private:
  friend class lending;
  mr::buffer buffer_;
};

/// The way to the keys that a connection's link has given the peer, for exposures, which may outlive the link and let
/// go on any thread. The keys of a link end with it; another link that is attached behind it gives others.
class link_keys {
 public:
  /// On the executor of the connection. `counters` stay until detach().
  explicit link_keys(live_statistics& counters) noexcept : home_(*executor_core::current()), counters_(counters) {}
  link_keys(const link_keys&) = delete;
  link_keys& operator=(const link_keys&) = delete;

  /// From any thread; elsewhere than on the link's the lending is handed there. Its key is revoked, by a worker where
  /// that blocks, before its memory goes, because the peer must not find what is on its way out.
  static void end(lending* what) noexcept { hand_over(what, false); }
  /// The same, but not before the peer has confirmed that it is done, or the link has closed.
  static void retire(lending* what) noexcept { hand_over(what, true); }

  /// Also when the executor has gone.
  [[nodiscard]] bool on_own_thread() const noexcept { return executor_core::current() == &home_; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }

  // On the link's thread only.

  /// There is none, or the one before has been detached.
  void attach(link& target) noexcept;
  /// The link has given the peer this key to so many bytes. False if its deadline has come by now: it is to end.
  [[nodiscard]] bool opened(lending& what, const mr::remote_key& key, std::size_t bytes) noexcept;
  /// The peer is done with a key: it goes now if it is retired, else once it is to be.
  void confirm(const mr::remote_key& key) noexcept;
  /// The peer has revoked a key: it goes now.
  void invalidated(const mr::remote_key& key) noexcept;
  /// The link has closed, and no key of it opens anything: what is retired goes.
  void detach() noexcept;
  /// The connection is destroyed: what a task that was made and has not begun must find out before it touches it.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_release); }

 private:
  friend class lending;
  static void hand_over(lending* what, bool retiring) noexcept;
  /// False if it is to be taken on this thread.
  [[nodiscard]] bool mail(lending& what) noexcept;
  void take(lending* what) noexcept;
  /// The link that has given its key, if it is still there.
  [[nodiscard]] link* opener_of(const lending& what) const noexcept;
  [[nodiscard]] lending* find(const mr::remote_key& key) noexcept;
  void take_back(lending* what, exposure_end why) noexcept;
  void unlist(lending& what) noexcept;
  static void end_copies(lending& what) noexcept;

  executor_core& home_;  // there while the link is
  std::mutex mutex_;     // over finding the link there and mailing to its executor, and over its going
  // Null: there is none, and no key opens anything. Else the one that gives keys. Written under the mutex.
  std::atomic<link*> link_{nullptr};
  std::atomic<std::uint32_t> attached_{0};  // links so far; written under the mutex
  std::atomic<bool> abandoned_{false};
  live_statistics& counters_;
  // All that have a key of the link, so that the one that the peer confirms is found among any number. Lent ones are
  // here too: the peer may be done before the owner lets go.
  lending::index listed_;
};

}  // namespace weft::net

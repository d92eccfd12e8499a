// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/system/clock.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace weft::net {

class waiting_set_up;

/// The limit on the connections of one listener, and the counts of those that exist and of the receives that they take.
/// Shared by the listener and its connections, on any thread.
class connection_places {
 public:
  /// The pool's receive budget as a number of parts. A connection takes the fraction that its receives need.
  static constexpr std::uint64_t whole_pool = std::uint64_t{1} << 32;

  /// If `most` is zero, there is no limit except the pool's receives.
  explicit connection_places(std::size_t most) noexcept : most_(most) {}

  /// How long a set-up may wait for its peer even if others want its place: long enough for a round trip and a turn of
  /// the peer's program.
  static constexpr std::chrono::milliseconds shortest_wait{100};

  /// Chooses a set-up that waits for its peer, by peer_to_evict(). If it has waited for shortest_wait, ends it, and
  /// frees its place at once. Returns the time from which the set-up may be ended: if later than `now`, nothing was
  /// done. If no set-up waits, the result is empty, or, shortly after an eviction, the time of the next try: a new
  /// set-up may then wait in the freed place.
  std::optional<time_point> evict(time_point now);

 private:
  friend class connection_place;
  friend class waiting_set_up;
  [[nodiscard]] bool has_limit() const noexcept { return most_ != 0; }
  [[nodiscard]] static bool take(std::atomic<std::uint64_t>& of, std::uint64_t much, std::uint64_t most) noexcept {
    std::uint64_t before = of.load(std::memory_order_relaxed);
    do {
      if (most < much || before > most - much) return false;
    } while (!of.compare_exchange_weak(before, before + much, std::memory_order_relaxed));
    return true;
  }

  const std::uint64_t most_;
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<std::uint64_t> of_pool_{0};
  std::mutex mutex_;
  std::vector<waiting_set_up*> waiting_;  // oldest first
  std::optional<time_point> last_evicted_;
};

/// One peer's place at a listener, from just before its request is handed out until the request is rejected, the set-up
/// has failed, connection_places::evict() takes the place away, or the connection has closed.
class connection_place {
 public:
  /// Takes a place; null if all are taken.
  [[nodiscard]] static std::unique_ptr<connection_place> take(std::shared_ptr<connection_places> of) {
    std::unique_ptr<connection_place> made(new connection_place(std::move(of)));
    return made->taken_ ? std::move(made) : nullptr;
  }
  connection_place(const connection_place&) = delete;
  connection_place& operator=(const connection_place&) = delete;
  ~connection_place() { give_up(); }

  [[nodiscard]] const std::shared_ptr<connection_places>& all() const noexcept { return of_; }
  /// Takes `parts` of connection_places::whole_pool; not to be called again after it has returned true. Returns false,
  /// and takes nothing, if the connections of the listener together would then hold, or wait for, more than twice the
  /// pool: the caller must not wait for receives as well. Takes nothing, and returns true, on a listener with a limit
  /// of its own.
  [[nodiscard]] bool take_receives(std::uint64_t parts) noexcept {
    if (of_->has_limit()) return true;
    if (!connection_places::take(of_->of_pool_, parts, 2 * connection_places::whole_pool)) return false;
    of_pool_ = parts;
    return true;
  }

 private:
  friend class connection_places;
  friend class waiting_set_up;
  void give_up() noexcept {
    if (std::exchange(taken_, false)) of_->taken_.fetch_sub(1, std::memory_order_relaxed);
    of_->of_pool_.fetch_sub(std::exchange(of_pool_, 0), std::memory_order_relaxed);
  }

  explicit connection_place(std::shared_ptr<connection_places> of) noexcept
      : of_(std::move(of)),
        taken_(connection_places::take(of_->taken_, 1, of_->has_limit() ? of_->most_ : UINT64_MAX)) {}

  std::shared_ptr<connection_places> of_;
  bool taken_;
  std::uint64_t of_pool_ = 0;
};

/// A set-up that waits for its peer, and whose place another peer may take. It lives on the executor of the set-up;
/// connection_places::evict() may end it from any thread.
class waiting_set_up final : private weft::detail::remote_work {
 public:
  waiting_set_up(connection_place& place, const peer_origin& from, stop_token parent);
  ~waiting_set_up();

  /// A token that stops when `parent` does, and when the place is taken away.
  [[nodiscard]] stop_token token() noexcept { return stop_.get_token(); }
  /// Ends the wait. True if the place was taken away.
  [[nodiscard]] bool ends_without_place() noexcept;
  [[nodiscard]] const peer_origin& origin() const noexcept { return origin_; }

 private:
  friend class connection_places;
  void run_on_executor() noexcept override;

  executor_core& home_;
  connection_place& place_;
  const peer_origin origin_;
  const time_point since_;
  linked_stop_source stop_;
  bool evicted_ = false;  // under the mutex of connection_places
  bool told_ = false;     // run_on_executor() has run
};

}  // namespace weft::net

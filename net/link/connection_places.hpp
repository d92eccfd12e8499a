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

/// The limit of connections of one listener, and how many there are. Shared by the listener and its connections, on any
/// thread.
class connection_places {
 public:
  /// The pool's receive budget as a number of parts. A connection takes the fraction that its receives need.
  static constexpr std::uint64_t whole_pool = std::uint64_t{1} << 32;

  /// `most` is zero: no limit but the pool's receives.
  explicit connection_places(std::size_t most) noexcept : most_(most) {}

  /// How long a set-up may wait for its peer at least, where others want its place: for a way there and back, and for
  /// the peer's program to have its turn.
  static constexpr std::chrono::milliseconds shortest_wait{100};

  /// Ends a set-up that waits for its peer, peer_to_evict(), for another one; its place is free at once. Yields the
  /// time from which that one may be ended: if it is later than `now`, nothing has happened. Empty: no set-up waits for
  /// its peer, nor has one been ended a moment ago, whose place may be that of the next to be.
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

/// One peer's place at a listener, from when its request is handed out until its connection has closed.
class connection_place {
 public:
  /// Null if all places are taken.
  [[nodiscard]] static std::unique_ptr<connection_place> take(std::shared_ptr<connection_places> of) {
    std::unique_ptr<connection_place> made(new connection_place(std::move(of)));
    return made->taken_ ? std::move(made) : nullptr;
  }
  connection_place(const connection_place&) = delete;
  connection_place& operator=(const connection_place&) = delete;
  ~connection_place() { give_up(); }

  [[nodiscard]] const std::shared_ptr<connection_places>& all() const noexcept { return of_; }
  /// Takes so many parts of connection_places::whole_pool; called once. False, only if the listener has no limit of its
  /// own, when other connections hold the whole pool and as many again wait for it: then this one must not wait too.
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

/// A set-up that waits for its peer: it has a place, which another peer may get. On the executor that sets up; another
/// thread may evict it.
class waiting_set_up final : private weft::detail::remote_work {
 public:
  waiting_set_up(connection_place& place, const peer_origin& from, stop_token parent);
  ~waiting_set_up();

  /// Stops when `parent` does, and once the place is another peer's.
  [[nodiscard]] stop_token token() noexcept { return stop_.get_token(); }
  /// The wait is over. True if the place is another peer's.
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
  bool told_ = false;     // of that
};

}  // namespace weft::net

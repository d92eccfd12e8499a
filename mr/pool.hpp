// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/arena.hpp>
#include <weft/mr/buffer.hpp>
#include <weft/mr/domain.hpp>
#include <weft/runtime/metrics.hpp>
#include <weft/runtime/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace weft::mr {

namespace detail {
class block_cache;
class pool_core;
}  // namespace detail

/// From which share of a pool a buffer comes. The shares are strictly apart, so that a sender that has used up its own
/// can still receive, and the other way round.
enum class budget : std::uint8_t { send, receive };

struct pool_options {
  std::size_t limit_bytes = std::size_t{256} << 20;  ///< of all arenas together
  std::size_t arena_bytes = std::size_t{4} << 20;    ///< of one arena; larger buffers get an arena of their own
  double receive_share = 0.5;                  ///< of the limit, for budget::receive; the rest is for budget::send
  bool huge_pages = true;                      ///< try to have them; what came of it is in the statistics
  weft::system_calls* system_calls = nullptr;  ///< seam: null is the kernel
};
static_assert(std::is_trivially_destructible_v<pool_options>);

/// What a pool has in hand. Sizes are those of the blocks, which are up to a quarter larger than what was asked for.
struct pool_statistics {
  struct share {
    std::size_t limit_bytes = 0;
    std::size_t arenas = 0;
    std::size_t arena_bytes = 0;   ///< in arenas: mapped and registered
    std::size_t in_use_bytes = 0;  ///< in buffers, and pinned
    std::size_t cached_bytes = 0;  ///< kept at hand by executors
    std::size_t waiting = 0;       ///< allocations that wait
  };
  share send;
  share receive;
  page_kind pages = page_kind::small;  ///< of the arena that was made last
  std::string pages_reason;            ///< why they are not huge, in words; empty if they are, or were not asked for
  std::string limit_reason;            ///< why the limit is lower than what was asked for; empty if it is not
  std::uint64_t failures = 0;          ///< how often an arena could not be made
  std::string last_failure;            ///< why, the last time; empty if all could

  [[nodiscard]] const share& of(budget which) const noexcept { return which == budget::send ? send : receive; }
};

/// Adds what a pool has in hand to metrics, under a name for the pool.
void add_to(metrics& all, const pool_statistics& what, std::string_view name);

/// Waiting for a buffer. See pool::allocate().
class allocate_operation final : public weft::detail::operation_base {
 public:
  allocate_operation(detail::pool_core& source, std::size_t bytes, budget share) noexcept
      : core_(&source), bytes_(bytes), share_(share) {}
  allocate_operation(allocate_operation&& other) noexcept
      : operation_base(std::move(other)), core_(other.core_), bytes_(other.bytes_), share_(other.share_) {}
  ~allocate_operation() {
    if (waiting()) leave();
  }

  bool await_ready();
  buffer await_resume() {
    if (block_ == nullptr) fail();
    return {*std::exchange(block_, nullptr), bytes_};
  }
  [[nodiscard]] std::string describe() const override { return "memory of a pool"; }

 private:
  friend class detail::pool_core;

  void begin() override;
  void cancel() noexcept override;
  void leave() noexcept;
  [[noreturn]] void fail();

  detail::pool_core* core_;
  std::size_t bytes_;
  budget share_;
  detail::block* block_ = nullptr;
  std::exception_ptr failure_;

  // Under the core's mutex: among those who wait, or those of one executor who are served and do not know it yet.
  enum class place : std::uint8_t { nowhere, queued, served };
  place place_ = place::nowhere;
  detail::block_cache* cache_ = nullptr;  // of the executor on which it waits
  allocate_operation* previous_ = nullptr;
  allocate_operation* next_ = nullptr;
};

/// Registered memory in pieces: arenas that are registered once and carved into buffers of many sizes.
///
/// Used from any thread; on an executor, from a cache without a lock. Each executor keeps at most an eighth of a share
/// in its cache, and gives it all back as soon as an allocation waits. Arenas are made and given back by workers; one
/// idle arena per share is kept.
class pool {
 public:
  /// Maps nothing yet. errc::invalid_argument if the options leave no room for a single buffer.
  explicit pool(std::shared_ptr<domain> home, pool_options options = {});
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  /// Buffers may outlive the pool. Allocations that still wait fail with errc::closed.
  ~pool();

  /// `co_await pool.allocate(bytes)` yields a buffer with that size().
  ///
  /// Waits while the share is used up; who waits is served in order. If an arena cannot be had, that is tried again,
  /// after 1 s at the latest, as long as somebody waits. errc::invalid_argument for more than largest();
  /// errc::canceled when stopped; and errc::no_memory with what the system said if an arena cannot be had while nothing
  /// of the share is in use, so that waiting would be for nothing. A task that waits may be destroyed: a buffer that is
  /// on its way to it goes back.
  [[nodiscard]] allocate_operation allocate(std::size_t bytes, budget share = budget::send) noexcept {
    return {*core_, bytes, share};
  }

  /// The same without waiting: empty if there is no buffer at hand, or somebody waits for one; more memory may then be
  /// on its way. Buffers that are too large to share an arena are never at hand.
  [[nodiscard]] std::optional<buffer> try_allocate(std::size_t bytes, budget share = budget::send);

  /// The largest buffer that a share can ever yield.
  [[nodiscard]] std::size_t largest(budget share = budget::send) const noexcept;

  [[nodiscard]] pool_statistics statistics() const;

 private:
  detail::pool_core* core_;
};

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/depot.hpp>

#include <array>
#include <cstddef>
#include <memory>

namespace weft::mr::detail {

/// Decides when one budget gets another arena, and which arenas it gives up: at most one is being made at a time, and
/// all together stay within the limit. Under the core's mutex; the core has workers carry out the decisions.
class arena_supply {
 public:
  arena_supply(depot& home, std::size_t limit) noexcept : depot_(home), limit_(limit) {}

  /// Work for workers, once the mutex is released.
  struct orders {
    carved_arena* give_up = nullptr;
    // The arena to make, for each budget: its size (0: make none), and whether it is for a single large block.
    std::array<std::size_t, budgets> make_bytes{};
    std::array<bool, budgets> make_whole{};

    [[nodiscard]] bool empty() const noexcept { return give_up == nullptr && make_bytes[0] == 0 && make_bytes[1] == 0; }
  };

  /// Has an arena made for a missing block of `bytes`; or, if there is no room, has idle arenas given up, so that a
  /// later call finds room. Does nothing while an arena is being made.
  void want(std::size_t bytes, orders& to) noexcept;
  /// Has the next arena made, before a task has to wait for it, if less than a quarter of an arena is free and there is
  /// room for another.
  void grow_ahead(orders& to) noexcept;
  /// Gives up idle arenas, except `keep` shared ones (for several buffers). True if it gave up a shared one.
  bool trim(std::size_t keep, orders& to) noexcept;
  /// Gives up an arena that is not in the depot.
  void give_up(std::unique_ptr<carved_arena> item, orders& to) noexcept;

  // The outcome of the orders.

  void made() noexcept;
  void not_made(std::size_t bytes) noexcept;
  void given_up(std::size_t bytes) noexcept;

  [[nodiscard]] bool grows() const noexcept { return grows_; }
  /// Whether the last arena could not be made. If so, grow_ahead() does nothing.
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_; }
  /// The bytes of all arenas, including those being made or freed.
  [[nodiscard]] std::size_t committed() const noexcept { return committed_; }

 private:
  void make(std::size_t bytes, bool whole, orders& to) noexcept;

  depot& depot_;
  const std::size_t limit_;
  std::size_t committed_ = 0;
  std::size_t retiring_ = 0;  // part of committed_: arenas that are being freed
  bool grows_ = false;        // an arena is being made
  bool has_failed_ = false;
};

}  // namespace weft::mr::detail

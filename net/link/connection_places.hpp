// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace weft::net {

/// The limit of connections of one listener, and how many there are. Shared by the listener and its connections, on any
/// thread.
class connection_places {
 public:
  /// The pool's receive budget as a number of parts. A connection takes the fraction that its receives need.
  static constexpr std::uint64_t whole_pool = std::uint64_t{1} << 32;

  /// `most` is zero: no limit but the pool's receives.
  explicit connection_places(std::size_t most) noexcept : most_(most) {}

 private:
  friend class connection_place;
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
  ~connection_place() {
    if (taken_) of_->taken_.fetch_sub(1, std::memory_order_relaxed);
    of_->of_pool_.fetch_sub(of_pool_, std::memory_order_relaxed);
  }

  /// Takes so many parts of connection_places::whole_pool; called once. False, only if the listener has no limit of its
  /// own, when other connections hold the whole pool and as many again wait for it: then this one must not wait too.
  [[nodiscard]] bool take_receives(std::uint64_t parts) noexcept {
    if (of_->has_limit()) return true;
    if (!connection_places::take(of_->of_pool_, parts, 2 * connection_places::whole_pool)) return false;
    of_pool_ = parts;
    return true;
  }

 private:
  explicit connection_place(std::shared_ptr<connection_places> of) noexcept
      : of_(std::move(of)),
        taken_(connection_places::take(of_->taken_, 1, of_->has_limit() ? of_->most_ : UINT64_MAX)) {}

  std::shared_ptr<connection_places> of_;
  bool taken_;
  std::uint64_t of_pool_ = 0;
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include <kv/table.hpp>

// Values expire by one clock, the server's, whoever reads them. A client that reads the table by itself is told what
// that clock shows, and reckons from then on with the latest that it can show: it may let a value go a little early,
// and never answers one that the server has let go.
namespace kv {

/// The clock of a server: what the wall clock showed when it began, and the time since. It goes on evenly when somebody
/// sets the wall clock.
[[nodiscard]] moment server_now() noexcept;

/// What a client knows of its server's clock.
class clock_bound {
 public:
  using local = std::chrono::steady_clock;
  /// Clocks of two machines go apart by less than one part in so many.
  static constexpr std::uint64_t drift = 1000;

  clock_bound() = default;
  /// The server has said what its clock shows, after `asked`.
  clock_bound(moment shown, local::time_point asked) noexcept : shown_(shown), asked_(asked) {}

  /// The latest that the server's clock can show now.
  [[nodiscard]] moment latest(local::time_point now = local::now()) const noexcept {
    const auto passed = static_cast<moment>(std::chrono::ceil<std::chrono::milliseconds>(now - asked_).count());
    return shown_ + passed + passed / drift + 1;
  }
  /// Whether the answer has become imprecise: a minute has passed.
  [[nodiscard]] bool is_old(local::time_point now = local::now()) const noexcept {
    return now - asked_ > std::chrono::minutes(1);
  }

 private:
  moment shown_ = 0;
  local::time_point asked_;
};

}  // namespace kv

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace weft::net {

/// When to try again, and when to give up.
struct retry_options {
  std::chrono::milliseconds first_pause{100};                      ///< the longest pause after the first failure
  std::chrono::milliseconds max_pause = std::chrono::seconds(10);  ///< the longest pause after any failure
  /// The limit for all attempts and pauses together. An attempt that begins late, because the executor did not run, has
  /// the time that was left when it was due.
  std::chrono::milliseconds give_up_after = std::chrono::minutes(1);
  unsigned max_attempts = 0;            ///< 0: as many as give_up_after allows
  std::optional<std::uint64_t> seed{};  ///< for tests, to draw the same pauses each time
};
static_assert(std::is_trivially_destructible_v<retry_options>);

/// The pauses between attempts: the bound doubles from first_pause to max_pause, and each pause is drawn between half
/// the bound and the bound, so that the many clients of a restarted server do not all come at once.
class back_off {
 public:
  /// Begins with first_pause as the bound. A first_pause below 1 ms counts as 1 ms, and a max_pause below first_pause
  /// counts as first_pause.
  explicit back_off(const retry_options& when);
  /// How long to wait before the next attempt.
  [[nodiscard]] duration next();

 private:
  duration bound_;
  duration longest_;
  std::uint64_t random_;
};

}  // namespace weft::net

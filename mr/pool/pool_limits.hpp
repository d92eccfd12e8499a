// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/pool/budget.hpp>
#include <weft/mr/pool_options.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <string>

namespace weft::mr::detail {

/// The bytes that each budget of a pool may have, and the errors of allocations that would need more.
class pool_limits {
 public:
  /// errc::invalid_argument if the options are wrong. Warns if the limit on locked memory lowers the limits.
  pool_limits(const domain& home, const pool_options& options);

  [[nodiscard]] std::size_t of(budget which) const noexcept { return which == budget::send ? send_ : receive_; }
  /// The size of an ordinary arena.
  [[nodiscard]] std::size_t arena_bytes(budget which) const noexcept;
  /// Why the limit is lower than pool_options::max_bytes; empty if it is not.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  /// Throws errc::invalid_argument for a buffer that is larger than the budget; an empty one needs memory as well.
  void check(std::size_t bytes, budget which) const;
  /// `most`: the number of buffers that are possible.
  [[nodiscard]] error impossible(std::size_t count, std::size_t bytes, budget which, std::size_t most) const;

 private:
  void warn(const domain& home, std::size_t limit) const;
  [[nodiscard]] std::string because(const char* separator) const {
    return reason_.empty() ? reason_ : separator + reason_;
  }

  std::size_t arena_bytes_;
  std::string reason_;
  std::size_t send_ = 0;
  std::size_t receive_ = 0;
};

/// "send" or "receive".
[[nodiscard]] constexpr const char* name_of(budget which) noexcept {
  return which == budget::send ? "send" : "receive";
}

}  // namespace weft::mr::detail

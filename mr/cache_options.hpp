// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace weft::mr {

/// How a cache learns that registered memory has been unmapped or mapped anew.
enum class cache_monitor : std::uint8_t {
  none,         ///< by cache::invalidate() alone
  userfaultfd,  ///< from the kernel as well: userfaultfd(2)
};

/// How much a cache keeps registered, and how it learns that a registration is out of date.
struct cache_options {
  /// The most bytes that are kept registered. Where registering pins memory, the limit is locked_memory_limit() if that
  /// is less.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();
  /// The most regions that are kept registered: 0 keeps none.
  std::size_t max_regions = 1024;
  cache_monitor monitor = cache_monitor::none;  ///< how the cache learns of memory that was unmapped

  /// Options from the environment, in place of the defaults above: WEFT_CACHE_MAX_SIZE (bytes), WEFT_CACHE_MAX_COUNT,
  /// WEFT_CACHE_MONITOR (userfaultfd, or disabled: no monitor, and nothing is kept, as with max_regions 0).
  /// errc::invalid_argument, naming the variable, for any other value.
  [[nodiscard]] static cache_options from_environment();
};
static_assert(std::is_trivially_destructible_v<cache_options>);

}  // namespace weft::mr

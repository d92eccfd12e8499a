// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace weft::mr::detail {

/// What this process has mapped at some addresses: proc_pid_maps(5).
struct mapped_range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  bool shared = false;      ///< MAP_SHARED
  bool has_file = false;    ///< on a disk or in memory, which others may have open, and change
  bool may_shrink = false;  ///< and which ftruncate(2) may make shorter

  friend bool operator==(const mapped_range&, const mapped_range&) = default;
};

/// All that overlap `memory`, by address; none if it is not mapped at all. Empty if the kernel does not say: without
/// /proc, or without a descriptor for it. Blocks for as long as somebody else maps memory: for workers.
[[nodiscard]] std::optional<std::vector<mapped_range>> mapped_ranges_of(std::span<const std::byte> memory);

/// The same, by reading all that the kernel tells: what an older one takes, and a test.
[[nodiscard]] std::optional<std::vector<mapped_range>> mapped_ranges_in(std::string_view maps,
                                                                        std::span<const std::byte> memory);

}  // namespace weft::mr::detail

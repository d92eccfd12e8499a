// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::mr::detail {

/// A mapping of this process, as proc_pid_maps(5) describes it.
struct mapped_range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  bool shared = false;    ///< MAP_SHARED
  bool has_file = false;  ///< it belongs to a file, on a disk or in memory, that others may have open and change
  bool may_shrink =
      false;           ///< it belongs to a file that could become shorter: ftruncate(2); true even if seals forbid it
  std::string file{};  ///< the name of that file, as proc_pid_maps(5) has it

  friend bool operator==(const mapped_range&, const mapped_range&) = default;
};

/// The mappings that overlap `memory`, in order of address; none if it is not mapped at all. std::nullopt if the kernel
/// does not tell, for example without /proc or a free descriptor. Blocks while another thread maps memory: for workers.
[[nodiscard]] std::optional<std::vector<mapped_range>> mapped_ranges_of(std::span<const std::byte> memory);

/// The mappings that overlap `memory`, from the text of /proc/self/maps: for older kernels and tests. std::nullopt if
/// the text is malformed.
[[nodiscard]] std::optional<std::vector<mapped_range>> mapped_ranges_in(std::string_view maps,
                                                                        std::span<const std::byte> memory);

}  // namespace weft::mr::detail

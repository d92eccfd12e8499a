// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr::detail {

/// Has the kernel provide the pages of memory before a device pins it, which takes them one by one: in pieces, so that
/// many threads share the work and that it can be broken off, and huge ones where they fit. See madvise(2),
/// MADV_POPULATE_WRITE. What the kernel refuses is left to the registration, which says why.
class population {
 public:
  static constexpr std::size_t piece_bytes = std::size_t{32} << 20;
  /// Less is pinned faster than it is prepared.
  static constexpr std::size_t least_bytes = std::size_t{4} << 20;

  explicit population(const region_state& target) noexcept;

  /// Whether there is anything to do.
  [[nodiscard]] static bool wanted(const region_state& target) noexcept;
  /// How many pieces there are; the last may be smaller.
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }
  /// Does the next piece; false if none is left. Blocks. Many threads at a time.
  bool next() noexcept;

 private:
  void provide(std::uint64_t from, std::uint64_t length) const noexcept;
  void provide(std::span<std::byte> memory) const noexcept;

  const region_state& target_;
  weft::system_calls& calls_;
  const std::uint64_t bytes_;
  const std::size_t pieces_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace weft::mr::detail

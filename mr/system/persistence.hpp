// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

namespace weft::mr::detail {

/// Returns why memory cannot survive a power cut: it is no shared mapping of a file that has a name on a file system
/// other than one in memory. Empty if it can survive one. Blocks: for workers.
[[nodiscard]] std::string why_not_persistent(std::span<const std::byte> memory);

/// Returns why an RDMA device cannot make pinned memory persistent: it is no shared mapping of a DAX device, such as
/// /dev/dax0.0. Empty if it is one. Blocks: for workers.
[[nodiscard]] std::string why_not_dax(std::span<const std::byte> memory);

/// Writes what has changed in `memory` to the storage of its file, and waits for that: msync(2), MS_SYNC. Returns 0 or
/// -errno. Blocks, for as long as the storage takes: for workers.
[[nodiscard]] int make_persistent(std::span<std::byte> memory) noexcept;

/// The storage behind a region's file, for the flushes of all peers, on any thread. The kernel reports writes that it
/// could not make only once, to one caller, and takes their pages for clean from then on.
class storage {
 public:
  using writer = int (*)(std::span<std::byte> memory) noexcept;  ///< make_persistent(), or a test's

  explicit storage(writer call = make_persistent) noexcept : call_(call) {}

  /// Makes `memory` persistent. False if that fails, and from then on, unless it is only no longer mapped. One call
  /// waits for another, because a success beside a failure would prove nothing. Blocks: for workers.
  [[nodiscard]] bool write(std::span<std::byte> memory) noexcept;

 private:
  writer call_;
  std::mutex mutex_;
  bool has_lost_writes_ = false;
};

}  // namespace weft::mr::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

namespace weft::mr::detail {

/// Returns why memory cannot survive a power cut: it is not a shared mapping of a disk, or of a file that has a name in
/// a file system other than tmpfs, ramfs and hugetlbfs, or the kernel does not tell. Empty if none of these is so.
/// Blocks: for workers.
[[nodiscard]] std::string why_not_persistent(std::span<const std::byte> memory);

/// Returns why an RDMA device cannot make pinned memory persistent: the memory is not a shared mapping of a DAX device,
/// such as /dev/dax0.0. Empty if the device can. Blocks: for workers.
[[nodiscard]] std::string why_not_dax(std::span<const std::byte> memory);

/// Writes what has changed in the pages of `memory` to the storage of their file, and waits for it: msync(2), MS_SYNC.
/// Returns 0 or -errno. Blocks, for as long as the storage takes: for workers.
[[nodiscard]] int make_persistent(std::span<std::byte> memory) noexcept;

/// The storage behind a region's file, for the flushes of all peers, on any thread. The kernel reports a lost write
/// only once for each opening of the file, and takes the lost pages for clean from then on.
class storage {
 public:
  using writer = int (*)(std::span<std::byte> memory) noexcept;  ///< make_persistent(), or a test's

  explicit storage(writer call = make_persistent) noexcept : call_(call) {}

  /// Makes `memory` persistent. Returns false if that fails; all later calls return false then, too, unless the failure
  /// was only that the memory is no longer mapped. Calls wait for one another, because a success beside a failure would
  /// prove nothing. Blocks: for workers.
  [[nodiscard]] bool write(std::span<std::byte> memory) noexcept;

 private:
  writer call_;
  std::mutex mutex_;
  bool has_lost_writes_ = false;
};

}  // namespace weft::mr::detail

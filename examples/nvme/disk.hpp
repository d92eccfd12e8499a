// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nvme {

/// What is behind a namespace. Derive from it for a disk of your own: size, read and write are enough.
///
/// Calls come side by side, also for the same bytes, on the executor of the target. `offset` and the number of bytes
/// are multiples of the namespace's block size, and lie within size(). A failure is thrown: std::system_error
/// (weft::error is one) with ENOSPC, EROFS and EIO comes to the host under the right status, and anything else as an
/// internal error. The memory is needed until the task has ended, and it has ended whether it was stopped or not.
class disk {
 public:
  disk() = default;
  disk(const disk&) = delete;
  disk& operator=(const disk&) = delete;
  virtual ~disk() = default;

  /// In bytes. A namespace has as many whole blocks as fit.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  /// For people: "disk.img", "64 MiB of memory".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Whether write() always fails. The host then learns that before it tries.
  [[nodiscard]] virtual bool read_only() const noexcept { return false; }
  /// Whether what was written may be lost with the machine's power until flush() has returned.
  [[nodiscard]] virtual bool has_volatile_cache() const noexcept { return false; }

  /// Fills `into`.
  [[nodiscard]] virtual weft::task<> read(std::uint64_t offset, std::span<std::byte> into) = 0;
  [[nodiscard]] virtual weft::task<> write(std::uint64_t offset, std::span<const std::byte> from) = 0;
  /// Returns once all that has been written survives a loss of power.
  [[nodiscard]] virtual weft::task<> flush() { co_return; }
  /// Makes zeroes of a range. This one writes them.
  [[nodiscard]] virtual weft::task<> zero(std::uint64_t offset, std::uint64_t bytes);
  /// Nobody needs a range any more: its memory may be given back. What it reads as afterwards is up to the disk. This
  /// one does nothing.
  [[nodiscard]] virtual weft::task<> deallocate(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) { co_return; }
  /// Has size() look again. True if it has changed.
  [[nodiscard]] virtual weft::task<bool> look_again() { co_return false; }
};

}  // namespace nvme

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace weft::mr {

/// Notifies a cache when registered memory is unmapped or its pages are replaced: by munmap(2), mremap(2), mmap(2) with
/// MAP_FIXED, madvise(2) with MADV_DONTNEED or MADV_REMOVE, or by free(3), which calls these.
///
/// The monitor calls listener::begin(). Then, for each change, it reads the change from the kernel, which lets the
/// thread that made the change go on, and calls listener::changed(). At last it calls listener::end(). So nobody may
/// look into the cache between begin() and end(). None of these calls may allocate or free memory, because a thread
/// that waits for its change to be read may hold the allocator's lock.
///
/// A change frees its addresses before it is reported, and another thread may be given them at once. So a cache calls
/// all_told() before it trusts an entry for the memory that a caller names.
class memory_monitor {
 public:
  /// The receiver of changes: the cache.
  class listener {
   public:
    /// Calls of changed() follow. Nobody may use the cache until end().
    virtual void begin() noexcept = 0;
    /// The pages of `range` have been replaced or unmapped. If `still_mapped` is false, other memory or none may be
    /// mapped there, and the range is no longer watched.
    virtual void changed(std::span<const std::byte> range, bool still_mapped) noexcept = 0;
    /// The changes that followed begin() have all been reported.
    virtual void end() noexcept = 0;
    /// Destroys what changed() has dropped. Called after end(), on a separate thread, where it may allocate and free.
    virtual void clean_up() noexcept = 0;
    /// The first part of `range`, in whole pages, that need not be watched any more; empty if there is none, or if a
    /// change has ended the watch of any part of the memory that unwatch() was called for.
    [[nodiscard]] virtual std::span<const std::byte> unneeded(std::span<const std::byte> range) const noexcept = 0;

   protected:
    ~listener() = default;
  };

  memory_monitor() = default;
  memory_monitor(const memory_monitor&) = delete;
  memory_monitor& operator=(const memory_monitor&) = delete;
  virtual ~memory_monitor() = default;  ///< afterwards the listener is not called any more

  /// Starts to report changes of `range`. False if some cannot be reported, such as those of shared memory and of
  /// files, also of files in memory, or if the kernel refuses. Blocks. From any thread.
  [[nodiscard]] virtual bool watch(std::span<const std::byte> range) noexcept = 0;
  /// Tries to unwatch the parts of `range` that listener::unneeded() returns. Blocks. From any thread.
  virtual void unwatch(std::span<const std::byte> range) noexcept = 0;
  /// False while a change that was made before this call may still be unread. If all have been read, listener::end()
  /// has been called for them, or is about to be. From any thread; one system call.
  [[nodiscard]] virtual bool all_told() const noexcept = 0;
};

/// A monitor that uses userfaultfd(2), for memory that is anonymous and private. It handles no page faults, and has two
/// threads. Throws errc::not_supported, saying why, if the kernel does not permit it, and the system's error if a
/// thread cannot be started.
[[nodiscard]] std::unique_ptr<memory_monitor> make_userfaultfd_monitor(memory_monitor::listener& target);

}  // namespace weft::mr

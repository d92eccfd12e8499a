// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace weft::mr {

/// Tells a cache that something else has been mapped where it has registered memory: munmap(2), mremap(2), mmap(2) with
/// MAP_FIXED, madvise(2) with MADV_DONTNEED or MADV_REMOVE, and what free(3) makes of them.
///
/// The protocol: listener::begin(), then taking the next change from the kernel, which lets the thread go on that has
/// made it, then listener::changed(), then listener::end(); so between begin() and end() nobody may look into the
/// cache. None of this allocates or frees memory: a thread that waits for its change to be taken may hold the
/// allocator's lock.
///
/// A change frees its addresses before it is told, and another thread may be given them at once. Before a cache trusts
/// what it knows of memory that a caller has named, it asks all_told().
class memory_monitor {
 public:
  /// Who is told of changes: the cache.
  class listener {
   public:
    /// Changes follow.
    virtual void begin() noexcept = 0;
    /// The pages of `range` are others from now on. Unless it is `still_mapped`, something else may be mapped there,
    /// or nothing, and it is watched no longer.
    virtual void changed(std::span<const std::byte> range, bool still_mapped) noexcept = 0;
    /// All changes have been told.
    virtual void end() noexcept = 0;
    /// After end(), where allocating is allowed again, on a thread that nobody waits for.
    virtual void clean_up() noexcept = 0;
    /// The first part of `range`, which is of whole pages, that nobody needs watched; empty if there is none, or if a
    /// change has ended the watch of any of it.
    [[nodiscard]] virtual std::span<const std::byte> unneeded(std::span<const std::byte> range) const noexcept = 0;

   protected:
    ~listener() = default;
  };

  memory_monitor() = default;
  memory_monitor(const memory_monitor&) = delete;
  memory_monitor& operator=(const memory_monitor&) = delete;
  virtual ~memory_monitor() = default;  ///< afterwards the listener hears no more

  /// From now on, changes of `range` are told. False if not all can be: of memory of files, on a disk or not, and of
  /// memory that is shared. Blocks. From any thread.
  [[nodiscard]] virtual bool watch(std::span<const std::byte> range) noexcept = 0;
  /// Ends the watch of those parts of `range` that are listener::unneeded(). Blocks. From any thread.
  virtual void unwatch(std::span<const std::byte> range) noexcept = 0;
  /// False while a change that was made before this call may not have been told. From any thread; one system call.
  [[nodiscard]] virtual bool all_told() const noexcept = 0;
};

/// By userfaultfd(2), for memory that is anonymous and private. Faults are left alone. It has two threads.
/// Throws errc::not_supported, saying why, where the kernel does not permit it.
[[nodiscard]] std::unique_ptr<memory_monitor> make_userfaultfd_monitor(memory_monitor::listener& target);

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cache/lease_request.hpp>
#include <weft/mr/cache_options.hpp>
#include <weft/mr/cache_statistics.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/slice.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace weft::mr {

namespace detail {
class cache_core;
class cache_entry;
void end_lease(cache_entry& held) noexcept;
}  // namespace detail

/// A hold on a registration, from a cache. Move-only; usable on any thread. On an executor, its destructor does not
/// block, unless there is no memory to hand the deregistration to a worker; on other threads it may block.
class lease {
 public:
  lease() noexcept = default;
  lease(lease&& other) noexcept
      : entry_(std::exchange(other.entry_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
  lease& operator=(lease&& other) noexcept {
    lease taken(std::move(other));
    std::swap(entry_, taken.entry_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }
  ~lease() {
    if (entry_ != nullptr) detail::end_lease(*entry_);
  }

  explicit operator bool() const noexcept { return entry_ != nullptr; }
  /// The requested memory, for local operations. An operation keeps the memory registered until the operation has
  /// ended, even if the lease is destroyed before that.
  [[nodiscard]] mr::slice slice() const noexcept;
  /// The requested memory.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// The number of the registration: no two registrations of a cache share a number, not even those of the same range.
  /// The lease must not be empty.
  [[nodiscard]] std::uint64_t generation() const noexcept;
  /// False once the range has been invalidated, or the cache has found that it is device memory that was freed: the
  /// pages mapped there now may differ from the registered ones. With a monitor, also false for host memory that the
  /// monitor cannot watch, once the cache is gone, and while any watched memory is being changed, because the change
  /// may be in this range. The lease must not be empty.
  [[nodiscard]] bool current() const noexcept;

 private:
  friend class lease_operation;
  lease(detail::cache_entry* held, std::span<std::byte> memory) noexcept : entry_(held), bytes_(memory) {}

  detail::cache_entry* entry_ = nullptr;
  std::span<std::byte> bytes_;
};

/// Waits for a lease. See cache::lease().
class [[nodiscard("co_await it")]] lease_operation final : public detail::lease_request {
 public:
  /// Made by cache::lease().
  lease_operation(detail::cache_core& source, std::span<std::byte> memory, mr::usage purpose,
                  memory_device* device) noexcept
      : lease_request(memory, purpose, device), core_(&source) {}
  lease_operation(lease_operation&& other) noexcept : lease_request(std::move(other)), core_(other.core_) {}
  ~lease_operation() {
    if (waiting()) leave();
    if (entry_ != nullptr) detail::end_lease(*entry_);
  }

  bool await_ready();
  lease await_resume() {
    if (entry_ == nullptr) fail();
    return {std::exchange(entry_, nullptr), memory_};
  }
  [[nodiscard]] std::string describe() const override { return "a registration for a cache"; }

 private:
  void begin() override;
  void cancel() noexcept override;
  void leave() noexcept;
  [[noreturn]] void fail() const;

  detail::cache_core* core_;
};

/// Keeps memory outside of pools registered as long as there is room: for programs that cannot choose where their data
/// lies, but use the same addresses again. Programs that can choose use the buffers of a pool.
///
/// A lease of memory that the cache keeps registered for the same usage, also as part of a larger range, needs no
/// system call; with a monitor, it needs one. Otherwise a worker registers the memory, once for all callers that ask
/// for it meanwhile. To make room, the cache evicts the region whose last lease is about the longest ago. A region that
/// is leased, or used by an operation, is not evicted for that; if eviction passes it over, it counts as just leased. A
/// kept region that lies inside a new one of the same usage is dropped; if it is leased, it stays registered until its
/// lease ends. The cost of a lease grows with the logarithm of the number of regions. Thread-safe.
///
/// Without a monitor, the cache does not notice that memory is freed. Before leased memory is freed (free(3),
/// munmap(2), the destructor of a container) call invalidate(), or have the cache watch it: cache_options::monitor.
/// Otherwise later leases of the same address may be for pages that are no longer mapped there. The monitor learns of a
/// change before the call that makes it returns; because the addresses are free slightly earlier, leases that begin in
/// between register their memory anew. Memory that the monitor cannot watch is leased but not kept: memory of files,
/// also of files in memory (memfd_create(2), shm_open(3)), and shared memory, whose pages other processes can replace
/// too. The monitor is not notified of MADV_GUARD_INSTALL (madvise(2), Linux 6.13): call invalidate().
///
/// A child of fork(2) must not use the parent's cache, except to destroy it; awaiting a lease there throws
/// errc::not_supported. A child of vfork(2), or of a direct call of clone(2), should call exec: if the parent destroys
/// the cache before that, freeing memory that the cache has watched waits for the child.
class cache {
 public:
  /// Registers with `home`, as net::device::domain(), which lives on for as long as the cache and its leases. Throws
  /// errc::not_supported if the monitor of `options` is not available, and the system's error if a thread for the
  /// monitor cannot be started.
  explicit cache(domain& home, cache_options options = {});
  cache(const cache&) = delete;
  cache& operator=(const cache&) = delete;
  /// Leases may outlive the cache. No task may wait for a lease when the cache is destroyed. With a monitor, the
  /// destructor waits until the monitor's threads have ended.
  ~cache();

  /// `co_await cache.lease(bytes, usage)` yields a lease of these bytes, registered for exactly that usage.
  ///
  /// errc::access_denied for a usage that gives peers access, because their key would stay valid as long as the cache
  /// keeps the region: register or expose such memory. errc::invalid_argument for mr::everything(). Other errors as
  /// with domain::register_memory(); a registration that fails with errc::no_memory is tried once more after all idle
  /// regions have been evicted. errc::canceled if a stop ends the wait; the registration goes on. A task that waits may
  /// be destroyed, which ends a lease that is on its way to the task.
  ///
  /// `device` is the device whose memory this is (registration_options::device; null: host memory), and must live until
  /// the lease arrives. Each lease asks the device which allocation the memory belongs to, so even without a monitor a
  /// registration of freed memory never serves a new allocation at the same address. Freed memory stays registered, and
  /// an RDMA device may keep its pages, until a lease of the new allocation, an eviction, invalidate() or clear() ends
  /// the registration. Throws the errors of memory_device::find().
  lease_operation lease(std::span<std::byte> memory, mr::usage purpose, memory_device* device = nullptr) noexcept {
    return {*core_, memory, purpose, device};
  }

  /// Forgets all registrations that overlap a range, those in progress included: the next lease registers its memory
  /// again. A region that is leased stays registered until its lease ends, but is no longer current(). From any thread:
  /// on an executor, workers deregister the memory; on other threads, this call does, and blocks meanwhile.
  void invalidate(std::span<const std::byte> range) noexcept;
  /// Forgets every region that is not in use, and deregisters these regions as invalidate() does.
  void clear() noexcept;

  /// The state of the cache, and its counts so far.
  [[nodiscard]] cache_statistics statistics() const noexcept;

 private:
  std::shared_ptr<detail::cache_core> core_;
};

}  // namespace weft::mr

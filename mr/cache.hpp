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

/// The use of a registration that a cache holds. Move-only; on any thread. Ended on an executor, it never blocks.
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
  /// What was asked for, for operations of ours. They keep it registered until they have ended, as the lease does.
  [[nodiscard]] mr::slice slice() const noexcept;
  /// The memory that was asked for.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// The number of the registration: no two registrations share one, not even those of the same range.
  [[nodiscard]] std::uint64_t generation() const noexcept;
  /// False once its range has been invalidated: what is mapped there now may not be what is registered. With a monitor,
  /// also false from the beginning for memory that the monitor cannot watch, once the cache is gone, and while a change
  /// of any watched memory is under way, which may be one of its range.
  [[nodiscard]] bool current() const noexcept;

 private:
  friend class lease_operation;
  lease(detail::cache_entry* held, std::span<std::byte> memory) noexcept : entry_(held), bytes_(memory) {}

  detail::cache_entry* entry_ = nullptr;
  std::span<std::byte> bytes_;
};

/// Waiting for a lease. See cache::lease().
class lease_operation final : public detail::lease_request {
 public:
  /// Made by cache::lease().
  lease_operation(detail::cache_core& source, std::span<std::byte> memory, mr::usage purpose) noexcept
      : lease_request(memory, purpose), core_(&source) {}
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

/// Keeps memory registered that is not the pool's, for as long as there is room: for programs that cannot choose where
/// their data lies, but use the same places again. Programs that can choose take buffers of a pool instead.
///
/// A lease of memory that is registered for the same usage, as a part of a larger range too, costs no system call
/// without a monitor and one with it; else a worker registers it, once for all who ask meanwhile. The region that has
/// not been leased for the longest time gives way to new ones; a region that is leased, or that an operation uses,
/// never does, and counts as leased when it is passed over. All of it costs about the same whether it keeps ten regions
/// or a million. Thread-safe.
///
/// The cache cannot see memory go. Before memory that was leased is given back (free(3), munmap(2), the destructor of a
/// container) call invalidate(), or have the cache watch it: cache_options::monitor. Otherwise later leases of the same
/// address may be for pages that are there no more. The monitor knows of a change before the call that has made it
/// returns; as the addresses are free a little earlier, leases that begin in between register anew. What it cannot
/// watch is leased but not kept: memory of files, on a disk or not (memfd_create(2), shm_open(3)), and memory that is
/// shared, whose pages others replace as well. It does not hear of MADV_GUARD_INSTALL (madvise(2), Linux 6.13): call
/// invalidate(). A child of fork(2) must not use the parent's cache: errc::not_supported. A child of vfork(2), or of
/// clone(2) itself, should call exec: until it does, giving back memory that a cache had watched, if that cache was
/// destroyed meanwhile, waits for the child.
class cache {
 public:
  /// errc::not_supported if there is no such monitor here; errc::invalid_argument for a domain that is null.
  explicit cache(std::shared_ptr<domain> home, cache_options options = {});
  cache(const cache&) = delete;
  cache& operator=(const cache&) = delete;
  /// Leases may outlive the cache. No task may wait for a lease when it is destroyed.
  ~cache();

  /// `co_await cache.lease(bytes, usage)` yields a lease of these bytes, registered for exactly that usage.
  ///
  /// errc::access_denied for a usage that lets peers in, whose key would be good as long as the cache likes: register
  /// or expose such memory. Other errors as with domain::register_memory(); a registration for which there is no memory
  /// is tried again once all idle ones have given way. errc::canceled when stopped; the registration then goes on. A
  /// task that waits may be destroyed: a lease that is on its way to it ends.
  [[nodiscard]] lease_operation lease(std::span<std::byte> memory, mr::usage purpose) noexcept {
    return {*core_, memory, purpose};
  }

  /// Forgets the registrations of a range, those in progress included: the next lease registers it again. A region that
  /// is leased stays registered until its lease ends, but is no longer current(). From any thread; on an executor it
  /// does not block.
  void invalidate(std::span<const std::byte> range) noexcept;
  /// Forgets all that is not in use.
  void clear() noexcept;

  /// What it holds, and how often it has hit and missed.
  [[nodiscard]] cache_statistics statistics() const noexcept;

 private:
  std::shared_ptr<detail::cache_core> core_;
};

}  // namespace weft::mr

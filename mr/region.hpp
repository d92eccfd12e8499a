// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace weft::mr {

/// One registration, from domain::register_memory(). Move-only.
///
/// A region that owns its memory keeps it until deregistration has returned. If such a region is destroyed on an
/// executor, a worker deregisters it and frees the memory. End a region that borrows its memory with release(): its
/// destructor deregisters on the calling thread, and waits for windows that are being revoked, so that nobody touches
/// the memory once it returns. If an operation or a window still uses such a region, or porting::refresh() or
/// porting::enable() still runs, its destructor ends the program. A region that was moved from is empty: it has no
/// bytes.
///
/// Any number of threads may call its const members at the same time, and use its slices on connections of different
/// executors. Only one thread at a time may move, change, release or destroy it, and no other thread may be in one of
/// its const members then.
class region {
 public:
  region() noexcept = default;
  /// Makes a region of memory that has been registered: for domains, and for mr/porting.
  explicit region(std::unique_ptr<detail::region_state> state) noexcept : state_(state.release()) {}
  region(region&& other) noexcept = default;
  region& operator=(region&& other) noexcept {
    region(std::move(other)).swap(*this);
    return *this;
  }
  ~region();

  void swap(region& other) noexcept { state_.swap(other.state_); }
  /// False if it is empty.
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// The size in bytes, over all ranges.
  [[nodiscard]] std::size_t size() const noexcept { return state_ != nullptr ? state_->size() : 0; }
  /// The first byte; that of the first range, if there are several.
  [[nodiscard]] std::byte* data() const noexcept { return bytes().data(); }
  /// The memory; the first range, if there are several.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return state_ != nullptr ? state_->bytes : std::span<std::byte>();
  }
  /// What local operations and peers may do with the memory; usage::none for an empty region.
  [[nodiscard]] mr::usage usage() const noexcept { return state_ != nullptr ? state_->options.usage : mr::usage::none; }

  /// A view of `length` bytes from `offset` on, for local operations. Throws errc::out_of_range beyond the region, and
  /// for bytes that span several ranges: take a slice of each range, for an operation that gathers. errc::busy while
  /// porting::refresh() or porting::enable() runs, because each may give the region another key.
  [[nodiscard]] mr::slice slice(std::size_t offset, std::size_t length) const;
  /// A view of `part`, which must lie in one range of the region. Throws as slice(offset, length) does.
  [[nodiscard]] mr::slice slice(std::span<std::byte> part) const;
  /// A view of all of it; of the first range, if there are several. errc::busy as above.
  [[nodiscard]] mr::slice slice() const;

  /// The descriptor with which a peer uses the memory: send the peer its pack(). errc::access_denied if the region is
  /// empty, if its usage gives peers no access, or if it is disabled and gets its key only from porting::enable();
  /// errc::busy as with slice().
  [[nodiscard]] remote_region remote() const;

  /// Deregisters on a worker, then frees memory that the region owns. A stop does not interrupt it.
  ///
  /// errc::busy while an operation or a window uses the region, and while porting::refresh() or porting::enable() runs;
  /// the region then stays as it is. Windows that were destroyed do not count, even if a worker is still revoking them:
  /// release() waits for them. A peer that still uses the key gets an error. From an executor.
  task<> release();

  /// The state behind the region, for mr/porting. Null if the region was released, moved from or default-constructed.
  [[nodiscard]] detail::region_state* state() const noexcept { return state_.held(); }

 private:
  // Takes the state, which leaves the region empty. Throws errc::busy while something else holds the region.
  [[nodiscard]] std::unique_ptr<detail::region_state> take(const char* what);
  [[nodiscard]] std::span<std::byte> bytes_at(std::size_t offset, std::size_t length) const;

  weft::detail::sole_handle<detail::region_state*, "a region"> state_;
};

}  // namespace weft::mr

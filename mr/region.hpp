// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft::mr {

/// One registration, from domain::register_memory(). Move-only.
///
/// A region that owns its memory keeps it until deregistration has returned; when it is destroyed on an executor, a
/// worker does both. One that borrows is ended with release(); its destructor deregisters at once, on the calling
/// thread, so that nobody touches the memory any more when it returns; it waits for windows that are being revoked. An
/// empty region, which is what a move leaves, has no bytes.
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
  explicit operator bool() const noexcept { return state_ != nullptr && state_->registered; }

  /// The bytes of all ranges.
  [[nodiscard]] std::size_t size() const noexcept { return state_ != nullptr ? state_->size() : 0; }
  /// The memory; that of the first range, if there are several.
  [[nodiscard]] std::byte* data() const noexcept { return bytes().data(); }
  /// The memory; the first range, if there are several.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return state_ != nullptr ? state_->bytes : std::span<std::byte>();
  }
  /// What may be done with it; usage::none of an empty region.
  [[nodiscard]] mr::usage usage() const noexcept { return state_ != nullptr ? state_->options.usage : mr::usage::none; }

  /// A view of `length` bytes from `offset` on, for operations of this end. Throws errc::out_of_range, also if they lie
  /// in more than one range: take a slice of each, and an operation that gathers. errc::busy while reregister() or
  /// porting::refresh() runs, which may give the region another key.
  [[nodiscard]] mr::slice slice(std::size_t offset, std::size_t length) const;
  /// A view of all of it; of the first range, if there are several. errc::busy as above.
  [[nodiscard]] mr::slice slice() const;

  /// What a peer needs to use the memory; send it its pack(). errc::access_denied if the usage lets no peer in, or if
  /// the region is disabled and has no key before porting::enable(); errc::busy as with slice().
  [[nodiscard]] remote_region remote() const;

  /// Changes what the region is for, or how it is registered, as if it were released and its memory registered again.
  /// It may get other keys: take slice() and remote() anew. Where the device can change a region (ibv_rereg_mr(3)),
  /// pages that were pinned stay pinned, even if something else has been mapped there.
  ///
  /// errc::busy as with release(), which leaves the region as it is; so do the errors of domain::register_memory(),
  /// except the rare ones of a device that drops what it cannot change: the region is empty then. A requested_key must
  /// not be the current one. A region of several ranges, that is disabled or that counts writes cannot be changed
  /// (errc::invalid_argument). A stop does not interrupt it; until it has ended, slice() and remote() are errc::busy.
  /// From an executor.
  [[nodiscard]] task<> reregister(registration_options options);
  /// Registers other memory in a region that borrows: errc::invalid_argument if the region owns its memory.
  [[nodiscard]] task<> reregister(std::span<std::byte> memory, registration_options options);

  /// Deregisters on a worker, then frees memory that the region owns. A stop does not interrupt it.
  ///
  /// errc::busy while an operation uses a slice of the region, which then stays as it is. Windows that were destroyed,
  /// and that a worker is still revoking, are waited for instead. Peers that still have the key get an error. From an
  /// executor.
  [[nodiscard]] task<> release();

  /// The state behind the region, for mr/porting. Null if the region was moved from.
  [[nodiscard]] detail::region_state* state() const noexcept { return state_.held(); }

 private:
  // Leaves the region empty. errc::busy while somebody uses it.
  [[nodiscard]] std::unique_ptr<detail::region_state> take(const char* what);
  [[nodiscard]] std::span<std::byte> bytes_at(std::size_t offset, std::size_t length) const;

  weft::detail::sole_handle<detail::region_state*, "a region"> state_;
};

}  // namespace weft::mr

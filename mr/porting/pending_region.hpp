// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/memory_owner.hpp>
#include <weft/mr/porting/event_queue.hpp>
#include <weft/runtime/core/sole_handle.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

// Many registrations in flight: fi_mr(3), "FI_REG_MR".
namespace weft::mr::porting {

namespace detail {
class submission;
}

/// A registration that submit() has started. Move-only; usable on any thread.
///
/// Destroying it before its event was read cancels the registration: a worker (or, if none can be started, the
/// destroying thread) deregisters what was registered, and only then the event comes, with errc::canceled. If the
/// registration has failed already, the event has that error. So borrowed memory may be freed once an event without a
/// region has been read, whatever its error.
class pending_region {
 public:
  pending_region() noexcept = default;
  /// For submit().
  explicit pending_region(std::shared_ptr<detail::submission> started) noexcept : submission_(std::move(started)) {}
  pending_region(pending_region&& other) noexcept = default;
  pending_region& operator=(pending_region&& other) noexcept {
    pending_region taken(std::move(other));
    submission_.swap(taken.submission_);
    return *this;
  }
  ~pending_region();

  explicit operator bool() const noexcept { return submission_ != nullptr; }

  /// Whether its event can be read, has been read, or was dropped with its queue. The object must not be empty.
  [[nodiscard]] bool is_complete() const noexcept;

  /// The key that peers use; 0 if the region has none, such as a disabled region that gets its key only from enable().
  /// Throws errc::key_not_available before the event can be read, the registration's error if it failed, and
  /// errc::access_denied if the usage gives peers no access. The object must not be empty. See fi_mr_key(3).
  [[nodiscard]] std::uint64_t key() const;

 private:
  weft::detail::sole_handle<std::shared_ptr<detail::submission>, "a pending region"> submission_;
};

/// Registers memory as domain::register_memory() does, for many registrations in flight: it returns at once, and the
/// result is an event of `queue` that carries `context`. Throws if the options are wrong, std::bad_alloc, or the
/// system's error (no thread for a worker); then there is no event. On any thread; the executor's workers for resources
/// (resource_workers()) do the work, and must outlive the last event.
///
/// Borrowed memory must stay valid until the event has been read, and then until the region is released. See fi_mr(3).
[[nodiscard]] pending_region submit(domain& home, std::span<std::byte> memory, registration_options options,
                                    event_queue& queue, void* context);
/// Submits several ranges as one region: see domain::register_memory(). `ranges` is needed until the call returns.
[[nodiscard]] pending_region submit(domain& home, std::span<const std::span<std::byte>> ranges,
                                    registration_options options, event_queue& queue, void* context);

namespace detail {
[[nodiscard]] pending_region submit(domain& home, std::unique_ptr<mr::detail::region_state> state,
                                    const registration_options& options, event_queue& queue, void* context);
}

/// Submits memory that the region then owns. `owner` is taken in any case, and destroyed if submit() throws or the
/// registration fails.
template <memory_owner Owner>
[[nodiscard]] pending_region submit(domain& home, Owner&& owner, registration_options options, event_queue& queue,
                                    void* context)
  requires(!std::is_reference_v<Owner>)
{
  return detail::submit(home, home.own(std::forward<Owner>(owner)), options, queue, context);
}

}  // namespace weft::mr::porting

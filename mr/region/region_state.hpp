// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>
#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/region/told_counter.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/system/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace weft::mr {

class registrar;

namespace detail {

class last_use;
class storage;
class write_counter_core;

/// One registration and, if it owns its memory, the memory. Deleting it deregisters, which may block.
class region_state : public background_job, public memory_record {
 public:
  explicit region_state(std::shared_ptr<mr::registrar> from) noexcept;
  ~region_state() override;

  std::shared_ptr<mr::registrar> domain;  // where it is registered
  std::shared_ptr<memory_device> device_life;
  mr::registration_options options;
  bool registered = false;
  bool borrowed = true;
  bool enabled = true;
  bool changing = false;  // a worker registers the memory anew; until it is done, the registration must not be used
  std::shared_ptr<write_counter_core> counter;
  told_counter told;  // the number under which peers report writes that the fabric does not see
  peer_gate windows;
  std::shared_ptr<detail::storage> storage;  // null without usage::flush_persistent
  // Counts the region's handle, and everything else that keeps the region registered: operations, windows, last uses,
  // and a change. The last holder to let go disposes of the state.
  std::atomic<std::uint32_t> holders{1};

  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::span<const std::span<std::byte>> all_ranges() const noexcept;
  /// Whether `part` lies in one of the ranges.
  [[nodiscard]] bool contains(std::span<const std::byte> part) const noexcept;
  /// Stores the options; the device and the usage go into the memory_record, too.
  void set(const registration_options& wanted) noexcept;
  /// Registers the memory with the options that were set; on a worker. The errors of registrar::register_now().
  void register_now();
  void deregister() noexcept;
  void let_go() noexcept;
  /// Whether the region's handle is the only holder, apart from last uses, which end by themselves.
  [[nodiscard]] bool held_by_handle_alone() noexcept;
  /// Throws errc::busy while the registration is being changed; `what` is the verb in the error's text.
  void check_unchanging(const char* what) const;
  /// Returns the errc::busy error of a region with `all_holders` holders; `what` is the verb in the error's text.
  [[nodiscard]] error in_use(std::uint32_t all_holders, const char* what) const;
  /// Waits until every last use has ended, and itself ends those that no worker has begun. Called on the thread of the
  /// handle, or by a worker that acts for the handle. May block.
  void end_last_uses() noexcept;

 private:
  friend class last_use;
  void dispose() noexcept;
  void run() noexcept override {}  // a worker only has to delete the state

  // Both are under one mutex for all regions, because a state may be destroyed as soon as its last use has ended.
  weft::detail::intrusive_list<last_use> last_uses_;
  std::uint32_t last_use_count_ = 0;  // how many of the holders are last uses
};

template <class Owner>
class owning_region_state final : public region_state {
 public:
  owning_region_state(std::shared_ptr<mr::registrar> from, Owner&& memory)
      : region_state(std::move(from)), owner(std::move(memory)) {
    borrowed = false;
  }
  ~owning_region_state() override { deregister(); }  // before the owner is destroyed

  Owner owner;
};

}  // namespace detail

/// Keeps the region behind a slice registered while an operation or a window uses it. Pins are counted. A region that
/// owns its memory may be destroyed meanwhile: it is deregistered when the last pin is let go. If a region that borrows
/// its memory is destroyed meanwhile, the program ends. The slice of a buffer pins nothing: see mr::pin.
class region_pin {
 public:
  region_pin() noexcept = default;
  /// Holds the region of `used`, if it has one.
  explicit region_pin(const slice& used) noexcept;
  region_pin(region_pin&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  region_pin& operator=(region_pin&& other) noexcept {
    region_pin taken(std::move(other));
    std::swap(state_, taken.state_);
    return *this;
  }
  ~region_pin() {
    if (state_ != nullptr) state_->let_go();
  }

  /// Holds the region of `used` without an object: each hold() needs one release(). `used` must be registered memory.
  static void hold(const slice& used) noexcept;
  /// Ends a hold().
  static void release(const slice& used) noexcept {
    if (used.record()->region != nullptr) used.record()->region->let_go();
  }

  /// The gate for a window of the region; null if there is no region.
  [[nodiscard]] detail::peer_gate* windows() const noexcept { return state_ != nullptr ? &state_->windows : nullptr; }

 private:
  friend class detail::last_use;
  detail::region_state* state_ = nullptr;
};

namespace detail {

/// A window's last use of its region: a worker revokes the window, and then lets go of the window's pin.
///
/// Until then the region stays registered, but is not busy: a caller that ends or changes the region waits for the
/// revocation, or carries it out itself if withdraw() takes it from the worker.
class last_use : public weft::detail::list_hook<last_use> {
 public:
  last_use(const last_use&) = delete;
  last_use& operator=(const last_use&) = delete;

 protected:
  last_use() = default;
  ~last_use() = default;

  /// Makes this a last use of the region that `pin` holds, and takes the pin over. Call it before the work is handed to
  /// a worker. Does nothing for an empty pin.
  void begin_last_use(region_pin pin) noexcept;
  /// Ends the use once the work is done: lets the pin go, and disposes of the region if the pin was its last holder.
  /// Does nothing if no use has begun. On any thread.
  void end_last_use() noexcept;
  /// Makes waiting threads try withdraw() again, because it may succeed now. On any thread.
  static void offer_last_use() noexcept;

 private:
  friend class region_state;
  /// Takes the work from the worker; false if it is too late for that. Called on any thread, also under the mutex of
  /// all last uses.
  [[nodiscard]] virtual bool withdraw() noexcept = 0;
  /// Does the work, and calls end_last_use(). Called after withdraw(), on the same thread.
  virtual void run_here() noexcept = 0;

  region_state* state_ = nullptr;  // the region in use; null if no use has begun, or if it has ended
};

}  // namespace detail

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_owner.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/mr/registration.hpp>
#include <weft/runtime/task.hpp>

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace weft::mr {

/// A protection domain: where memory is registered so that a transport, and the peers that are given a key, may use it.
///
/// Thread-safe. Held by a shared_ptr: its regions and arenas keep it alive. A transport derives from it and overrides
/// the virtual functions of registrar.
class domain : public registrar, public std::enable_shared_from_this<domain> {
 public:
  /// Registers memory that the caller must keep until the region has been released.
  ///
  /// Workers do this; the worker pool bounds how many registrations run at once. Where the device pins, several workers
  /// first populate large memory with pages, huge ones where they fit (MADV_HUGEPAGE of madvise(2)); a file is not
  /// written for a usage that only reads it. A stop withdraws a queued registration, and undoes one that is under way
  /// (errc::canceled either way). errc::zero_length, null_address, unknown_usage, misaligned, duplicate_key,
  /// not_supported, out_of_range (memory or an iova that wraps around, or a requested_key that is too large),
  /// invalid_argument (options that contradict one another), no_memory; for device memory the errors of
  /// memory_device::find(); system_category for errors of the transport, EFAULT for memory that is not mapped, or not
  /// with the rights that its usage needs. See ibv_reg_mr(3), rpma_mr_reg(3), fi_mr(3).
  task<region> register_memory(std::span<std::byte> memory, registration_options options);

  /// Registers several ranges as one region: all of them or none. Peers see the ranges one behind the other, from the
  /// address of the first range or from the iova on. At most capabilities().max_ranges, each of at least one byte;
  /// ranges that adjoin count as one. `ranges` is needed until the call returns, and the call itself throws if the
  /// ranges cannot be one region. See fi_mr_regv(3).
  task<region> register_memory(std::span<const std::span<std::byte>> ranges, registration_options options);

  /// Registers memory that the region then owns; a worker destroys the owner after deregistration. `owner` is taken in
  /// any case, and destroyed if the registration fails.
  template <memory_owner Owner>
  task<region> register_memory(Owner&& owner, registration_options options)
    requires(!std::is_reference_v<Owner>)
  {
    return register_state(own(std::forward<Owner>(owner)), options);
  }

  /// Makes the state behind a region of this memory, for registrations that register_memory() does not carry out, such
  /// as those of mr/porting. prepare() makes the state ready for region_state::register_now().
  [[nodiscard]] std::unique_ptr<detail::region_state> borrow(std::span<std::byte> memory);
  /// Makes the state behind a region of several ranges. Throws if they cannot be one region.
  [[nodiscard]] std::unique_ptr<detail::region_state> borrow(std::span<const std::span<std::byte>> ranges,
                                                             const registration_options& options);
  /// Makes the state behind a region that owns its memory.
  template <memory_owner Owner>
  [[nodiscard]] std::unique_ptr<detail::region_state> own(Owner&& owner)
    requires(!std::is_reference_v<Owner>)
  {
    auto state = std::make_unique<detail::owning_region_state<Owner>>(shared_from_this(), std::forward<Owner>(owner));
    state->bytes = detail::bytes_of(state->owner);
    state->file = detail::file_of(state->owner);
    return state;
  }
  /// Whether a part of registered memory may lie in a file, on a disk or in memory, that may become shorter: then an
  /// access by the processor may raise SIGBUS. By default true for regions and leases, and false for arenas.
  [[nodiscard]] virtual bool may_shrink(const memory_record& memory) const noexcept { return memory.region != nullptr; }
  /// Stores the options in `target`, or throws if they are wrong.
  void prepare(detail::region_state& target, const registration_options& options) const;

 protected:
  /// Takes the fabric's name, and what it can do.
  using registrar::registrar;

  /// Makes another registration before it ends the old one.
  void do_refresh(detail::region_state& target, const registration_options& options) override;

 private:
  void check_direct(const detail::region_state& target, const registration_options& options) const;
  task<region> register_state(std::unique_ptr<detail::region_state> state, registration_options options);
};

}  // namespace weft::mr

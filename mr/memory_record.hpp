// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/backing_file.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/usage.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace weft::mr {

class registrar;
namespace detail {
class region_state;
}

/// The identity of registered memory: a region, a lease or an arena. Slices, buffers and the requests that a transport
/// gets refer to it.
///
/// It does not move while the memory is registered, and changes only while no slice of it is in use. Each registration
/// is opaque to all but the fabric that made it, except for its remote key and address.
struct memory_record {
  memory_device* device = nullptr;           ///< whose memory it is; null: host memory
  mr::usage usage = mr::usage::none;         ///< what operations may do with it
  const mr::registrar* home = nullptr;       ///< where it is registered; null: nowhere, and no operation takes it
  detail::region_state* region = nullptr;    ///< the region or lease; null: an arena, kept by its buffers' pins
  std::span<std::byte> bytes;                ///< the memory; the first range, if there are several
  std::vector<std::span<std::byte>> ranges;  ///< empty if there is only one
  backing_file file;              ///< behind `bytes`, borrowed: of an arena, or of a region that owns an mr::mapping
  mr::registration registration;  ///< with fabric 0
  std::unique_ptr<mr::registration[]> others;  ///< with the fabrics from 1 on, if the net::device has several

  std::uint64_t allocation = 0;  ///< device_allocation::id, for device memory
  /// The key in detail::owner_keys by which peers ask the owner to copy, or to make the memory persistent. 0: there is
  /// no key.
  std::uint64_t owners_key = 0;

  /// Whether that fabric reaches the memory by itself.
  [[nodiscard]] bool is_within_reach_of(std::size_t fabric) const noexcept {
    return device == nullptr || in(fabric).handle != nullptr;
  }
  /// The registration with that fabric.
  [[nodiscard]] const mr::registration& in(std::size_t fabric) const noexcept {
    assert(fabric == 0 || others != nullptr);
    return fabric == 0 ? registration : others[fabric - 1];
  }
};

}  // namespace weft::mr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/registration.hpp>

#include <array>
#include <cstdint>

namespace weft::net {

/// The name of a piece of the peer's memory on one fabric.
struct named_place {
  std::uint64_t key;      ///< work_request::remote_key; 0: the memory has no name on this fabric
  std::uint64_t address;  ///< work_request::remote_address
};

/// The names of a piece of the peer's memory on each fabric of the peer's device.
struct peer_names {
  /// The number of elements of `of`. 0: only the connection's own fabric matters, and `of` is unset.
  std::uint8_t count = 0;
  std::array<named_place, mr::max_fabrics> of;  ///< indexed by the fabric's number
};

}  // namespace weft::net

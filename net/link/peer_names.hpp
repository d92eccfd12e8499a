// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/registration.hpp>

#include <array>
#include <cstdint>

namespace weft::net {

/// The peer's memory in the form in which links take it.
struct named_place {
  std::uint64_t key;      ///< 0: it has no name there
  std::uint64_t address;  ///< in the peer's terms
};

/// What each fabric of the peer's device calls a piece of its memory, by their numbers.
struct peer_names {
  std::uint8_t count = 0;                       ///< 0: only the fabric of the connection matters, and the rest is unset
  std::array<named_place, mr::max_fabrics> of;  ///< all of them
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net::iwarp {

/// The answer to a peer's access to our memory. See RFC 5040 section 7.2 and RFC 5041 section 7.1.
enum class access_status : std::uint8_t {
  ok,
  invalid_stag,    ///< no such key, or revoked
  bounds,          ///< outside of the region
  access,          ///< the region does not allow it
  not_associated,  ///< the key belongs to another connection
  wrap,            ///< offset + length exceeds 64 bits
  misaligned,      ///< an atomic operation off an 8-byte boundary
};

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net::software {

/// The result of a peer's access to local memory. See RFC 5040 section 7.2 and RFC 5041 section 7.1.
enum class access_status : std::uint8_t {
  ok,
  invalid_stag,    ///< no such key, or it is revoked or not enabled
  bounds,          ///< outside of the region, or where its pages are gone, as in a shorter file
  access,          ///< the key does not give this right
  not_associated,  ///< the key belongs to another connection
  wrap,            ///< offset + length exceeds 64 bits
  misaligned,      ///< an atomic operation off an 8-byte boundary
};

/// The reason, for the text of an error.
[[nodiscard]] constexpr const char* reason_of(access_status status) noexcept {
  constexpr const char* reasons[] = {"no error",
                                     "no such key",
                                     "outside of the region",
                                     "the region does not allow it",
                                     "the key is another connection's",
                                     "offset + length exceeds 64 bits",
                                     "not aligned to 8 bytes"};
  return reasons[static_cast<std::size_t>(status)];
}

}  // namespace weft::net::software

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net {

/// What has taken an exposure's key back.
enum class exposure_end : std::uint8_t {
  open,        ///< nothing: the peer may use the memory, or may be about to lose it
  deadline,    ///< expose_options::until
  owner,       ///< the program: exposure::revoke(), or its destructor
  peer,        ///< the peer, by a message that revoked the key (send_options::invalidate)
  connection,  ///< the end of the connection
};
/// In words that stand behind "the memory": "was taken back at its deadline".
[[nodiscard]] const char* to_string(exposure_end how) noexcept;

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net {

/// Why an exposure's key was revoked.
enum class exposure_end : std::uint8_t {
  open,        ///< it was not revoked: the peer may use the memory, or is about to lose it
  deadline,    ///< expose_options::until
  owner,       ///< the program: exposure::revoke(), the destructor, or connection::confirm_retired()
  peer,        ///< the peer, by a message that revoked the key (send_options::invalidate)
  connection,  ///< the end of the connection
};
/// A phrase to follow "the memory": "was taken back at its deadline".
[[nodiscard]] const char* to_string(exposure_end how) noexcept;

}  // namespace weft::net

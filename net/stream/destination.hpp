// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace weft::net {

/// The address of a stream's peer, or of a listener.
struct destination {
  bool plain = false;  ///< plain TCP, without the device
  std::string_view where;
};

/// Parses "SCHEME://HOST:PORT", or an address without a scheme. SCHEME is "tcp", or the scheme of a fabric in `device`:
/// "verbs" or "iwarp" if `device` is "verbs:mlx5_0,iwarp". Throws errc::not_supported for others.
[[nodiscard]] destination parse_destination(std::string_view address, std::string_view device);

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace weft::net {

/// The address of a stream's peer, or of a listener.
struct destination {
  bool plain = false;  ///< plain TCP, without the device
  std::string_view where;
};

/// Parses "SCHEME://HOST:PORT", or an address without a scheme. The schemes are "tcp" and those of the fabrics of the
/// device of this name: for "verbs:mlx5_0,iwarp" they are "verbs" and "iwarp". Throws errc::not_supported for others.
[[nodiscard]] destination parse_destination(std::string_view address, std::string_view device);

}  // namespace weft::net

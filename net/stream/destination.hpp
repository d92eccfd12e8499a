// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace weft::net {

/// Where a stream leads, or comes from.
struct destination {
  bool plain = false;  ///< over TCP, without the device
  std::string_view where;
};

/// "SCHEME://HOST:PORT", or without a scheme; the schemes are "tcp" and those of the fabrics of the device of this
/// name: of "verbs:mlx5_0,iwarp" they are "verbs" and "iwarp". Throws errc::not_supported for others.
[[nodiscard]] destination parse_destination(std::string_view address, std::string_view device);

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/exposure_end.hpp>

namespace weft::net {

const char* to_string(exposure_end how) noexcept {
  switch (how) {
    case exposure_end::open:
      break;
    case exposure_end::deadline:
      return "was taken back at its deadline";
    case exposure_end::owner:
      return "was taken back by its owner";
    case exposure_end::peer:
      return "was given back by the peer";
    case exposure_end::connection:
      return "was taken back with the connection";
  }
  return "is exposed";
}

}  // namespace weft::net

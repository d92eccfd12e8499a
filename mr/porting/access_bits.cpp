// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/access_bits.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::mr::porting {

void detail::throw_unknown_bits(const char* interface, std::uint64_t bits) {
  throw error(errc::unknown_usage, fmt::format("translate {} bits {:#x}", interface, bits));
}

void detail::throw_without_local_write() {
  throw error(errc::invalid_argument,
              "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE");
}

}  // namespace weft::mr::porting

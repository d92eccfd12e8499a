// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <cstdint>

namespace weft::test {

/// The key of memory on iWARP or an RDMA device, where it has 32 bits.
[[nodiscard]] inline std::uint32_t stag_of(const mr::remote_slice& where) noexcept {
  return static_cast<std::uint32_t>(where.key());
}

}  // namespace weft::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace weft {
class system_calls;
}

namespace weft::net::software {

/// Throws EFAULT for memory that is not mapped, or not with the rights that `uses` needs, as a device that pins would;
/// `name` is the fabric's. Returns whether the memory lies partly in a file that may become shorter. If the kernel does
/// not tell what is mapped, nothing is refused.
[[nodiscard]] bool check_memory(std::span<const std::byte> memory, mr::usage uses, std::string_view name,
                                system_calls& calls);

}  // namespace weft::net::software

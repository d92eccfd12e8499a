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

/// Checks that memory is mapped with the rights that `uses` needs, as a device that pins would. Throws EFAULT if it is
/// not, or, since Linux 5.14, if it lies beyond the end of a file that may become shorter; `name` is the fabric's.
/// Returns whether the memory lies partly in such a file. If the kernel does not tell what is mapped, and for
/// mr::everything(), throws nothing and returns false.
[[nodiscard]] bool check_memory(std::span<const std::byte> memory, mr::usage uses, std::string_view name,
                                system_calls& calls);

}  // namespace weft::net::software

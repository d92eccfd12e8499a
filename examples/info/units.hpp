// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace info {

/// "8 MiB", "1.5 GiB", "65 bytes"
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

}  // namespace info

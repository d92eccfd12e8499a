// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace weft::mr {

/// How many bytes this process may lock in memory: RLIMIT_MEMLOCK of getrlimit(2). std::nullopt if there is no limit,
/// or if CAP_IPC_LOCK of capabilities(7) lifts it.
[[nodiscard]] std::optional<std::size_t> locked_memory_limit() noexcept;

}  // namespace weft::mr
